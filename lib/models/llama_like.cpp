#include "lib/models/llama_like.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::models {

namespace {

void set_llama_like(DecoderSpec& spec) {
  spec.norm.kind = kernels::NormKind::rms_norm;
  spec.gated_mlp = true;
}

}  // namespace

void LlamaLikeOptions::validate(recipe::Issues& issues) const {
  CommonModelOptions::validate(issues);
  if (num_key_value_heads() && num_attention_heads() % *num_key_value_heads() != 0) {
    issues.add(num_key_value_heads,
               fmt::format("{} key/value heads do not divide num_attention_heads {}",
                           num_key_value_heads()->value, num_attention_heads().value));
  }
  if (head_dim() && *head_dim() % 2 != 0) {
    issues.add(head_dim, "RoPE needs an even head_dim");
  } else if (!head_dim() && hidden_size() / num_attention_heads() % 2 != 0) {
    issues.add(num_attention_heads,
               "RoPE needs an even head_dim: hidden_size / num_attention_heads is odd");
  }
}

std::uint64_t LlamaLikeOptions::longest_sequence() const {
  const std::uint64_t trained = max_position_embeddings();
  if (!rope_scaling) return trained;
  const auto length = static_cast<std::int64_t>(trained);
  return static_cast<std::uint64_t>(rope_scaling.value(length).longest_sequence(length));
}

DecoderSpec LlamaLikeOptions::llama_like_spec() const {
  DecoderSpec spec = common_spec();
  set_llama_like(spec);
  spec.intermediate_size = static_cast<std::int64_t>(intermediate_size().value);
  if (num_key_value_heads()) {
    spec.num_key_value_heads = static_cast<std::int64_t>(num_key_value_heads()->value);
  }
  spec.norm.eps = rms_norm_eps();
  spec.activation = hidden_act();
  spec.rope_theta = rope_theta();
  if (rope_scaling) spec.rope_scaling = rope_scaling.value(spec.max_position_embeddings);
  spec.tie_word_embeddings = tie_word_embeddings();
  spec.attention_dropout = attention_dropout();
  return spec;
}

DecoderSpec read_llama_like(HfConfigReader& config, const LlamaLikeDefaults& absent) {
  DecoderSpec spec;
  set_llama_like(spec);
  spec.vocab_size = config.size("vocab_size", limits::kVocabSize, absent.vocab_size);
  spec.hidden_size = config.size("hidden_size", limits::kHiddenSize, absent.hidden_size);
  spec.intermediate_size =
      config.size("intermediate_size", limits::kIntermediateSize, absent.intermediate_size);
  spec.num_hidden_layers =
      config.size("num_hidden_layers", limits::kLayers, absent.num_hidden_layers);
  spec.num_attention_heads =
      config.size("num_attention_heads", limits::kHeads, absent.num_attention_heads);
  spec.num_key_value_heads =
      config.size("num_key_value_heads", limits::kHeads,
                  absent.num_key_value_heads.value_or(spec.num_attention_heads));
  if (spec.num_attention_heads % spec.num_key_value_heads != 0) {
    config.refuse("num_key_value_heads",
                  fmt::format("does not divide num_attention_heads {}", spec.num_attention_heads));
  }
  if (!config.has("head_dim") && !absent.head_dim &&
      spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("num_attention_heads",
                  fmt::format("does not divide hidden_size {}", spec.hidden_size));
  }
  spec.head_dim =
      config.size("head_dim", limits::kHeadDim,
                  absent.head_dim.value_or(spec.hidden_size / spec.num_attention_heads));
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "RoPE needs an even width of heads");
  spec.max_position_embeddings =
      config.size("max_position_embeddings", limits::kPositions, absent.max_position_embeddings);
  spec.activation = config.activation(absent.keys.activation, absent.keys.default_activation);
  spec.norm.eps = config.positive("rms_norm_eps", absent.rms_norm_eps);
  spec.rope_theta = config.rope(absent.rope_theta, spec.rope_scaling);
  std::int64_t& original_length = spec.rope_scaling.original_max_position_embeddings;
  if (has_original_length(spec.rope_scaling.type) && original_length == 0) {
    original_length = spec.max_position_embeddings;
  }
  spec.tie_word_embeddings = config.flag("tie_word_embeddings", absent.keys.tie_word_embeddings);
  spec.attention_dropout = config.probability("attention_dropout", 0);
  spec.init_std = config.positive("initializer_range", 0.02);
  return spec;
}

HfConfigWriter write_llama_like(std::string_view model_type, std::string_view class_name,
                                const DecoderSpec& spec, const HfExport& options,
                                const LlamaLikeKeys& keys) {
  HfConfigWriter config(model_type, class_name, spec, options);
  config.set("attention_dropout", spec.attention_dropout);
  config.set("head_dim", spec.head_dim);
  config.set(std::string(keys.activation), to_string(spec.activation));
  config.set("hidden_size", spec.hidden_size);
  config.set("intermediate_size", spec.intermediate_size);
  config.set("max_position_embeddings", spec.max_position_embeddings);
  config.set("num_attention_heads", spec.num_attention_heads);
  config.set("num_hidden_layers", spec.num_hidden_layers);
  config.set("num_key_value_heads", spec.num_key_value_heads);
  config.set("rms_norm_eps", spec.norm.eps);
  config.set_rope(spec);
  return config;
}

namespace {

void add_experts(HfLayout& layout, const DecoderSpec& spec, const std::string& block,
                 const HfExpertNames& names) {
  const std::string ours = block + "mlp.", theirs = fmt::format("{}{}.", block, names.block);
  layout.tensors.push_back({theirs + "gate.weight", {ours + "gate.weight"}});
  if (spec.experts.correction_bias) {
    layout.tensors.push_back({.name = theirs + "gate.e_score_correction_bias",
                              .members = {ours + "gate.e_score_correction_bias"},
                              .keeps_fp32 = true});
  }
  if (spec.experts.num_shared > 0) {
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = fmt::format("shared_experts.{}.weight", projection);
      layout.tensors.push_back({theirs + name, {ours + name}});
    }
  }
  for (std::int64_t e = 0; e < spec.experts.num_experts; ++e) {
    for (const auto& [name, member] :
         {std::pair{names.gate, "gate_proj"}, std::pair{names.up, "up_proj"},
          std::pair{names.down, "down_proj"}}) {
      layout.tensors.push_back({.name = fmt::format("{}experts.{}.{}.weight", theirs, e, name),
                                .members = {fmt::format("{}experts.{}.weight", ours, member)},
                                .expert = e});
    }
  }
}

}  // namespace

HfLayout llama_like_hf_layout(const DecoderSpec& spec) { return llama_like_hf_layout(spec, {}); }

HfLayout llama_like_hf_layout(const DecoderSpec& spec, const HfExpertNames& names) {
  HfLayout layout;
  const auto add = [&](const std::string& name) {
    layout.tensors.push_back({name, {name}, false});
  };
  const auto add_linear = [&](const std::string& name, bool bias) {
    add(name + ".weight");
    if (bias) add(name + ".bias");
  };
  add("model.embed_tokens.weight");
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    add(block + "input_layernorm.weight");
    for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
      add_linear(block + "self_attn." + projection, spec.qkv_bias);
    }
    add_linear(block + "self_attn.o_proj", spec.attention_output_bias);
    if (spec.attention_sinks) add(block + "self_attn.sinks");
    if (spec.qk_norm) {
      for (const char* norm : {"q_norm", "k_norm"}) add(block + "self_attn." + norm + ".weight");
    }
    add(block + "post_attention_layernorm.weight");
    if (spec.post_norms) {
      for (const char* side : {"pre", "post"}) add(block + side + "_feedforward_layernorm.weight");
    }
    if (spec.has_experts(i)) {
      add_experts(layout, spec, block, names);
    } else {
      for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
        add_linear(block + "mlp." + projection, spec.mlp_bias);
      }
    }
    layout.constants.push_back(block + "self_attn.rotary_emb.inv_freq");
  }
  add("model.norm.weight");
  if (spec.tie_word_embeddings) {
    layout.copies = {{"lm_head.weight", "model.embed_tokens.weight"}};
  } else {
    add("lm_head.weight");
  }
  return layout;
}

}  // namespace llmtrain::models
