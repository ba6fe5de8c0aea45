// Qwen3, dense (arXiv 2505.09388): Llama with an RMSNorm over each head of q and k; the upper
// layers may have a sliding window.
#include "lib/models/upper_windows.hpp"

namespace llmtrain::models {

namespace {

struct Qwen3Options : UpperWindowOptions {
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};
};

DecoderSpec qwen3_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const Qwen3Options&>(section);
  DecoderSpec spec = options.windowed_spec();
  spec.qk_norm = true;
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  return spec;
}

std::string qwen3_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("qwen3", "Qwen3ForCausalLM", spec, options);
  config.set("attention_bias", spec.qkv_bias);
  write_upper_windows(config, spec);
  return config.text();
}

DecoderSpec qwen3_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {.vocab_size = 151936,
                                              .intermediate_size = 22016,
                                              .num_key_value_heads = 32,
                                              .head_dim = 128,
                                              .max_position_embeddings = 32768});
  spec.qk_norm = true;
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  read_upper_windows(config, spec);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kQwen3{"qwen3",
                          "Qwen3: Llama with a norm over each head of q and k",
                          &recipe::section_of<Qwen3Options>,
                          &qwen3_spec,
                          &llama_like_hf_layout,
                          &qwen3_hf_config,
                          &qwen3_from_hf_config};

}  // namespace llmtrain::models
