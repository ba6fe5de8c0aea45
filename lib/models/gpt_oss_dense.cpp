// The attention of gpt-oss (OpenAI 2025) in a dense model: Llama with biases, a window in every
// other layer, and in each head a sink that takes its part of the probability. gpt-oss itself has
// experts; transformers has no dense one, so only this program opens what it exports.
#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

namespace {

struct GptOssDenseOptions : LlamaLikeOptions {
  recipe::Key<std::optional<recipe::Count>> sliding_window{
      this, "sliding_window", recipe::Count{128},
      "tokens that attention sees in layers 0, 2, 4 ..., the query's own included; null = the "
      "whole "
      "document",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
  recipe::Key<bool> attention_bias{this, "attention_bias", true,
                                   "biases in q, k, v and output projections"};
};

DecoderSpec gpt_oss_dense_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const GptOssDenseOptions&>(section);
  DecoderSpec spec = options.llama_like_spec();
  spec.attention_sinks = true;
  spec.window_period = 2;
  if (options.sliding_window()) {
    spec.sliding_window = static_cast<std::int64_t>(options.sliding_window()->value);
  }
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  return spec;
}

std::string gpt_oss_dense_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config =
      write_llama_like("gpt_oss_dense", "GptOssDenseForCausalLM", spec, options);
  config.set("attention_bias", spec.qkv_bias);
  config.set_layer_types(spec);
  spec.sliding_window > 0 ? config.set("sliding_window", spec.sliding_window)
                          : config.set_null("sliding_window");
  return config.text();
}

// Only this program writes such a file, with every key.
DecoderSpec gpt_oss_dense_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {});
  spec.attention_sinks = true;
  spec.window_period = 2;
  if (!config.is_null("sliding_window")) {
    spec.sliding_window = config.size("sliding_window", limits::kPositions, 128);
  }
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", true);
  config.only_layer_types(spec,
                          "only a window in every other layer, beginning with the first, is "
                          "implemented");
  config.finish();
  return spec;
}

}  // namespace

const Architecture kGptOssDense{"gpt_oss_dense",
                                "the attention of gpt-oss, with sinks, in a dense Llama",
                                &recipe::section_of<GptOssDenseOptions>,
                                &gpt_oss_dense_spec,
                                &llama_like_hf_layout,
                                &gpt_oss_dense_hf_config,
                                &gpt_oss_dense_from_hf_config};

}  // namespace llmtrain::models
