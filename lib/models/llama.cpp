// Llama (arXiv 2302.13971, 2307.09288): RMSNorm, RoPE, grouped-query attention, SwiGLU.
#include "lib/models/architecture.hpp"
#include "lib/models/hidden_act.hpp"

namespace llmtrain::models {

namespace {

struct LlamaOptions : CommonModelOptions {
  recipe::Required<recipe::Count> intermediate_size{this, "intermediate_size", "width of the MLP",
                                                    recipe::between(1, 1 << 22)};
  recipe::Key<std::optional<recipe::Count>> num_key_value_heads{
      this, "num_key_value_heads", std::nullopt,
      "key/value heads, a divisor of num_attention_heads; null = as many",
      recipe::between(1, 1 << 16)};
  recipe::Key<kernels::Activation> hidden_act{this, "hidden_act", kernels::Activation::silu,
                                              "activation function of the gate",
                                              activation_names()};
  recipe::Key<double> rms_norm_eps{this, "rms_norm_eps", 1e-5,
                                   "added to the mean square in RMSNorm", recipe::above(0)};
  recipe::Key<double> rope_theta{this, "rope_theta", 10000.0, "base of the rotary frequencies",
                                 recipe::above(1)};
  recipe::Key<bool> tie_word_embeddings{this, "tie_word_embeddings", false,
                                        "use the token embedding as the output head"};
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};
  recipe::Key<bool> mlp_bias{this, "mlp_bias", false, "biases in the MLP"};
  recipe::Key<double> attention_dropout{this, "attention_dropout", 0.0,
                                        "dropout on attention probabilities",
                                        recipe::at_least(0) & recipe::below(1)};

  void validate(recipe::Issues& issues) const override {
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
};

DecoderSpec llama_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const LlamaOptions&>(section);
  DecoderSpec spec = options.common_spec();
  spec.intermediate_size = static_cast<std::int64_t>(options.intermediate_size().value);
  if (options.num_key_value_heads()) {
    spec.num_key_value_heads = static_cast<std::int64_t>(options.num_key_value_heads()->value);
  }
  spec.norm = {kernels::NormKind::rms_norm, options.rms_norm_eps()};
  spec.activation = options.hidden_act();
  spec.gated_mlp = true;
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  spec.mlp_bias = options.mlp_bias();
  spec.rope_theta = options.rope_theta();
  spec.tie_word_embeddings = options.tie_word_embeddings();
  spec.attention_dropout = options.attention_dropout();
  return spec;
}

}  // namespace

const Architecture kLlama{"llama", "Llama 2 and 3: RMSNorm, RoPE, grouped-query attention, SwiGLU",
                          &recipe::section_of<LlamaOptions>, &llama_spec};

}  // namespace llmtrain::models
