// Mixtral (arXiv 2401.04088): Mistral with experts in every block, whose chosen ones share the
// probability.
#include "lib/models/experts_keys.hpp"

namespace llmtrain::models {

namespace {

constexpr HfExpertNames kNames{.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};

struct MixtralOptions : ExpertsOptions {
  MixtralOptions() : ExpertsOptions({"num_local_experts", 8}, 2) {}

  recipe::Key<std::optional<recipe::Count>> sliding_window{
      this, "sliding_window", std::nullopt,
      "tokens that attention sees, the query's own included; null = the whole document",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
};

// Experts are as wide as intermediate_size says; no block has a plain MLP.
void set_mixtral(DecoderSpec& spec) {
  spec.experts.intermediate_size = spec.intermediate_size;
  spec.experts.rule.normalize = true;
}

DecoderSpec mixtral_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const MixtralOptions&>(section);
  DecoderSpec spec = options.experts_spec();
  if (options.sliding_window()) {
    spec.sliding_window = static_cast<std::int64_t>(options.sliding_window()->value);
  }
  set_mixtral(spec);
  return spec;
}

HfLayout mixtral_hf_layout(const DecoderSpec& spec) { return llama_like_hf_layout(spec, kNames); }

std::string mixtral_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("mixtral", "MixtralForCausalLM", spec, options);
  write_experts(config, "num_local_experts", spec);
  config.set("router_jitter_noise", 0.0);
  if (spec.sliding_window > 0) {
    config.set("sliding_window", spec.sliding_window);
  } else {
    config.set_null("sliding_window");
  }
  return config.text();
}

DecoderSpec mixtral_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {.intermediate_size = 14336,
                                              .num_key_value_heads = 8,
                                              .max_position_embeddings = 131072,
                                              .rms_norm_eps = 1e-5,
                                              .rope_theta = 1e6});
  read_experts(config, {"num_local_experts", 8, 2}, spec);
  set_mixtral(spec);
  spec.sliding_window =
      config.has("sliding_window") ? config.size("sliding_window", limits::kPositions, 1) : 0;
  config.only("router_jitter_noise", "0.0");
  config.finish();
  return spec;
}

}  // namespace

const Architecture kMixtral{"mixtral",
                            "Mixtral: Mistral with experts",
                            &recipe::section_of<MixtralOptions>,
                            &mixtral_spec,
                            &mixtral_hf_layout,
                            &mixtral_hf_config,
                            &mixtral_from_hf_config};

}  // namespace llmtrain::models
