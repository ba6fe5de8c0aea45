// Mistral (arXiv 2310.06825): Llama with a sliding window.
#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

namespace {

struct MistralOptions : LlamaLikeOptions {
  recipe::Key<std::optional<recipe::Count>> sliding_window{
      this, "sliding_window", std::nullopt,
      "tokens that attention sees, the query's own included; null = the whole document",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
};

DecoderSpec mistral_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const MistralOptions&>(section);
  DecoderSpec spec = options.llama_like_spec();
  if (options.sliding_window()) {
    spec.sliding_window = static_cast<std::int64_t>(options.sliding_window()->value);
  }
  return spec;
}

std::string mistral_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("mistral", "MistralForCausalLM", spec, options);
  if (spec.sliding_window > 0) {
    config.set("sliding_window", spec.sliding_window);
  } else {
    config.set_null("sliding_window");
  }
  return config.text();
}

DecoderSpec mistral_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(
      config,
      {.intermediate_size = 14336, .num_key_value_heads = 8, .max_position_embeddings = 131072});
  // Absent is 4096, null is none.
  if (!config.is_null("sliding_window")) {
    spec.sliding_window = config.size("sliding_window", limits::kPositions, 4096);
  }
  config.only("attention_bias", "false");
  config.finish();
  return spec;
}

}  // namespace

const Architecture kMistral{"mistral",
                            "Mistral: Llama with a sliding window",
                            &recipe::section_of<MistralOptions>,
                            &mistral_spec,
                            &llama_like_hf_layout,
                            &mistral_hf_config,
                            &mistral_from_hf_config};

}  // namespace llmtrain::models
