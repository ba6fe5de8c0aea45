// Llama 2 and 3 (arXiv 2307.09288, 2407.21783).
#include "lib/base/require.hpp"
#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

namespace {

struct LlamaOptions : LlamaLikeOptions {
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};
  recipe::Key<bool> mlp_bias{this, "mlp_bias", false, "biases in the MLP"};
};

DecoderSpec llama_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const LlamaOptions&>(section);
  DecoderSpec spec = options.llama_like_spec();
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  spec.mlp_bias = options.mlp_bias();
  return spec;
}

std::string llama_hf_config(const DecoderSpec& spec, const HfExport& options) {
  require<RecipeError>(spec.hidden_size % spec.num_attention_heads == 0,
                       "model.num_attention_heads: transformers opens a Llama only if its {} heads "
                       "divide hidden_size {}",
                       spec.num_attention_heads, spec.hidden_size);
  HfConfigWriter config = write_llama_like("llama", "LlamaForCausalLM", spec, options);
  config.set("attention_bias", spec.qkv_bias);
  config.set("mlp_bias", spec.mlp_bias);
  return config.text();
}

// Keys of the first Llama and of SmolLM that transformers' code does not read.
constexpr std::string_view kUnread[] = {"is_llama_config", "max_sequence_length"};

DecoderSpec llama_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {});
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  spec.mlp_bias = config.flag("mlp_bias", false);
  config.only("pretraining_tp", "1");  // more slices the products, for one cluster's rounding
  config.ignore(kUnread);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kLlama{"llama",
                          "Llama 2 and 3: RMSNorm, RoPE, grouped-query attention, SwiGLU",
                          &recipe::section_of<LlamaOptions>,
                          &llama_spec,
                          &llama_like_hf_layout,
                          &llama_hf_config,
                          &llama_from_hf_config};

}  // namespace llmtrain::models
