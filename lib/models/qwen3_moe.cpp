// Qwen3 with experts (arXiv 2505.09388): Qwen3 some or all of whose blocks have experts.
#include "lib/models/experts_keys.hpp"

namespace llmtrain::models {

namespace {

struct Qwen3MoeOptions : ExpertsOptions {
  Qwen3MoeOptions() : ExpertsOptions({"num_experts", 128}, 8) {}

  recipe::Key<recipe::Count> moe_intermediate_size{this, "moe_intermediate_size", 768,
                                                   "width of each expert",
                                                   recipe::between(1, limits::kIntermediateSize)};
  recipe::Key<bool> norm_topk_prob{this, "norm_topk_prob", true,
                                   "the chosen experts share the probability"};
  recipe::Key<recipe::Count> decoder_sparse_step{this, "decoder_sparse_step", 1,
                                                 "every how many blocks one has experts",
                                                 recipe::between(1, limits::kLayers)};
  recipe::Key<std::vector<std::int64_t>> mlp_only_layers{
      this,
      "mlp_only_layers",
      {},
      "blocks, from 0 on, without experts all the same",
      recipe::between(0, limits::kLayers)};
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};

  void validate(recipe::Issues& issues) const override {
    ExpertsOptions::validate(issues);
    if (moe_spec().num_expert_layers() == 0) {
      issues.add(decoder_sparse_step,
                 "no block has experts; lower it, or shorten mlp_only_layers, or choose "
                 "architecture qwen3");
    }
  }

  DecoderSpec moe_spec() const {
    DecoderSpec spec = experts_spec();
    spec.qk_norm = true;
    spec.qkv_bias = spec.attention_output_bias = attention_bias();
    spec.experts.intermediate_size = static_cast<std::int64_t>(moe_intermediate_size().value);
    spec.experts.rule.normalize = norm_topk_prob();
    spec.experts.step = static_cast<std::int64_t>(decoder_sparse_step().value);
    spec.experts.plain_layers = mlp_only_layers();
    return spec;
  }
};

DecoderSpec qwen3_moe_spec(const recipe::Section& section) {
  return dynamic_cast<const Qwen3MoeOptions&>(section).moe_spec();
}

std::string qwen3_moe_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("qwen3_moe", "Qwen3MoeForCausalLM", spec, options);
  write_experts(config, "num_experts", spec);
  config.set("attention_bias", spec.qkv_bias);
  config.set("decoder_sparse_step", spec.experts.step);
  config.set("mlp_only_layers", spec.experts.plain_layers);
  config.set("moe_intermediate_size", spec.experts.intermediate_size);
  config.set("norm_topk_prob", spec.experts.rule.normalize);
  config.set("use_sliding_window", false);
  config.set_null("sliding_window");
  return config.text();
}

DecoderSpec qwen3_moe_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {.vocab_size = 151936,
                                              .hidden_size = 2048,
                                              .intermediate_size = 6144,
                                              .num_hidden_layers = 24,
                                              .num_key_value_heads = 4,
                                              .max_position_embeddings = 32768});
  read_experts(config, {"num_experts", 128, 8}, spec);
  spec.qk_norm = true;
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  spec.experts.intermediate_size =
      config.size("moe_intermediate_size", limits::kIntermediateSize, 768);
  spec.experts.rule.normalize = config.flag("norm_topk_prob", false);
  spec.experts.step = config.size("decoder_sparse_step", limits::kLayers, 1);
  spec.experts.plain_layers = config.counts("mlp_only_layers", limits::kLayers);
  if (spec.num_expert_layers() == 0) {
    config.refuse("mlp_only_layers", "no block has experts", "choose a model of type qwen3");
  }
  // What these two say counts only with a window.
  config.count("max_window_layers", limits::kLayers, 0);
  config.size("sliding_window", limits::kPositions, 4096);
  config.only("use_sliding_window", "false");
  config.finish();
  return spec;
}

}  // namespace

const Architecture kQwen3Moe{"qwen3_moe",
                             "Qwen3 with experts",
                             &recipe::section_of<Qwen3MoeOptions>,
                             &qwen3_moe_spec,
                             &llama_like_hf_layout,
                             &qwen3_moe_hf_config,
                             &qwen3_moe_from_hf_config};

}  // namespace llmtrain::models
