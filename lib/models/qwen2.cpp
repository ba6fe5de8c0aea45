// Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with biases in q, k and v; the upper
// layers may have a sliding window.
#include "lib/models/upper_windows.hpp"

namespace llmtrain::models {

namespace {

DecoderSpec qwen2_spec(const recipe::Section& section) {
  DecoderSpec spec = dynamic_cast<const UpperWindowOptions&>(section).windowed_spec();
  spec.qkv_bias = true;
  return spec;
}

std::string qwen2_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("qwen2", "Qwen2ForCausalLM", spec, options);
  write_upper_windows(config, spec);
  return config.text();
}

DecoderSpec qwen2_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {.vocab_size = 151936,
                                              .intermediate_size = 22016,
                                              .num_key_value_heads = 32,
                                              .max_position_embeddings = 32768});
  spec.qkv_bias = true;
  read_upper_windows(config, spec);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kQwen2{"qwen2",
                          "Qwen2 and Qwen2.5: Llama with biases in q, k and v",
                          &recipe::section_of<UpperWindowOptions>,
                          &qwen2_spec,
                          &llama_like_hf_layout,
                          &qwen2_hf_config,
                          &qwen2_from_hf_config};

}  // namespace llmtrain::models
