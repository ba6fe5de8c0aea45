#include "lib/models/architecture.hpp"

#include <array>

#include "lib/base/require.hpp"
#include "lib/models/hf_config.hpp"

namespace llmtrain::models {

std::span<const Architecture> architectures() {
  static const std::array rows{kGpt2, kLlama,       kMistral, kQwen2,    kQwen3, kGemma2,
                               kMpt,  kGptOssDense, kMixtral, kQwen3Moe, kDots1};
  return rows;
}

const Architecture& hf_architecture(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  const std::string model_type = config.text("model_type", "");
  std::vector<std::string_view> names;
  for (const Architecture& row : architectures()) {
    if (row.name == model_type) return row;
    names.push_back(row.name);
  }
  config.refuse("model_type", fmt::format("expected one of {}", fmt::join(names, ", ")),
                "choose a model of one of these families");
}

DecoderSpec spec_from_hf_config(std::string_view json, const std::string& source) {
  return hf_architecture(json, source).spec_from_hf_config(json, source);
}

namespace {

std::string_view scores_name(const kernels::RouterRule& rule) {
  return rule.scores == kernels::RouterScores::softmax ? "softmax" : "sigmoid";
}

// Groups that are all kept choose as none do.
std::string groups_name(const kernels::RouterRule& rule) {
  if (rule.kept_groups == rule.groups) return "none";
  return fmt::format("{} of {}", rule.kept_groups, rule.groups);
}

}  // namespace

std::string computed_difference(const DecoderSpec& a, const DecoderSpec& b) {
  std::vector<std::string> parts;
  const auto compare = [&](std::string_view key, const auto& x, const auto& y) {
    if (x != y) parts.push_back(fmt::format("{} {} and {}", key, x, y));
  };
  const auto norm_name = [](const DecoderSpec& spec) {
    return spec.norm.kind == kernels::NormKind::layer_norm ? "LayerNorm" : "RMSNorm";
  };
  compare("vocab_size", a.vocab_size, b.vocab_size);
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("intermediate_size", a.intermediate_size, b.intermediate_size);
  compare("num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers);
  compare("num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  compare("num_key_value_heads", a.num_key_value_heads, b.num_key_value_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("attention_bias", a.qkv_bias, b.qkv_bias);
  compare("bias of the output projection", a.attention_output_bias, b.attention_output_bias);
  compare("mlp_bias", a.mlp_bias, b.mlp_bias);
  compare("bias of norms", a.norm_bias, b.norm_bias);
  compare("norms of queries and keys", a.qk_norm, b.qk_norm);
  compare("norms behind attention and MLP", a.post_norms, b.post_norms);
  compare("norm", std::string_view(norm_name(a)), std::string_view(norm_name(b)));
  compare("norm epsilon", a.norm.eps, b.norm.eps);
  compare("offset of norm weights", a.norm.weight_offset, b.norm.weight_offset);
  compare("embedding scale", a.embedding_scale, b.embedding_scale);
  compare("attention scale", a.attention_scale, b.attention_scale);
  compare("cap of attention scores", a.attention_softcap, b.attention_softcap);
  compare("cap of logits", a.logit_softcap, b.logit_softcap);
  compare("activation", to_string(a.activation), to_string(b.activation));
  compare("gated MLP", a.gated_mlp, b.gated_mlp);
  compare("learned positions", a.learned_positions, b.learned_positions);
  compare("attention sinks", a.attention_sinks, b.attention_sinks);
  compare("ALiBi", a.alibi_bias_max, b.alibi_bias_max);
  if (a.learned_positions || a.rope_scaling.type == "dynamic") {
    compare("max_position_embeddings", a.max_position_embeddings, b.max_position_embeddings);
  }
  if (a.has_rope() && b.has_rope()) {
    compare("rope_theta", a.rope_theta, b.rope_theta);
    compare("rope_scaling", to_string(a.rope_scaling), to_string(b.rope_scaling));
  }
  for (std::int64_t i = 0; i < std::min(a.num_hidden_layers, b.num_hidden_layers); ++i) {
    if (a.window_of(i) == b.window_of(i)) continue;
    compare(fmt::format("window of layer {}", i), a.window_of(i), b.window_of(i));
    break;
  }
  compare("experts", a.experts.num_experts, b.experts.num_experts);
  if (a.experts.num_experts > 0 && b.experts.num_experts > 0) {
    const kernels::RouterRule &x = a.experts.rule, &y = b.experts.rule;
    compare("width of experts", a.experts.intermediate_size, b.experts.intermediate_size);
    compare("num_experts_per_tok", x.top_k, y.top_k);
    compare("norm_topk_prob", x.normalize, y.normalize);
    compare("n_shared_experts", a.experts.num_shared, b.experts.num_shared);
    compare("scores of routers", scores_name(x), scores_name(y));
    compare("routed_scaling_factor", x.scale, y.scale);
    compare("groups of experts", groups_name(x), groups_name(y));
    compare("correction bias of routers", a.experts.correction_bias, b.experts.correction_bias);
    for (std::int64_t i = 0; i < std::min(a.num_hidden_layers, b.num_hidden_layers); ++i) {
      if (a.has_experts(i) == b.has_experts(i)) continue;
      compare(fmt::format("experts in layer {}", i), a.has_experts(i), b.has_experts(i));
      break;
    }
  }
  compare("tie_word_embeddings", a.tie_word_embeddings, b.tie_word_embeddings);
  return fmt::format("{}", fmt::join(parts, ", "));
}

void CommonModelOptions::validate(recipe::Issues& issues) const {
  if (!head_dim() && hidden_size() % num_attention_heads() != 0) {
    issues.add(num_attention_heads,
               fmt::format("{} heads do not divide hidden_size {}; choose another count or set "
                           "head_dim",
                           num_attention_heads().value, hidden_size().value));
  }
}

DecoderSpec CommonModelOptions::common_spec() const {
  DecoderSpec spec;
  spec.vocab_size = static_cast<std::int64_t>(vocab_size().value);
  spec.hidden_size = static_cast<std::int64_t>(hidden_size().value);
  spec.num_hidden_layers = static_cast<std::int64_t>(num_hidden_layers().value);
  spec.num_attention_heads = static_cast<std::int64_t>(num_attention_heads().value);
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = head_dim() ? static_cast<std::int64_t>(head_dim()->value)
                             : spec.hidden_size / spec.num_attention_heads;
  spec.max_position_embeddings = static_cast<std::int64_t>(max_position_embeddings().value);
  spec.init_std = initializer_range();
  spec.scaled_residual_init = scaled_residual_init();
  return spec;
}

}  // namespace llmtrain::models
