// GPT-2 (Radford et al. 2019): LayerNorm, learned positions, multi-head attention, GELU, biases.
#include "lib/models/architecture.hpp"
#include "lib/models/hidden_act.hpp"

namespace llmtrain::models {

namespace {

struct Gpt2Options : CommonModelOptions {
  recipe::Key<std::optional<recipe::Count>> intermediate_size{
      this, "intermediate_size", std::nullopt, "width of the MLP; null = 4 * hidden_size",
      recipe::between(1, 1 << 22)};
  recipe::Key<kernels::Activation> hidden_act{this, "hidden_act",
                                              kernels::Activation::gelu_pytorch_tanh,
                                              "activation function of the MLP", activation_names()};
  recipe::Key<double> layer_norm_epsilon{this, "layer_norm_epsilon", 1e-5,
                                         "added to the variance in LayerNorm", recipe::above(0)};
  recipe::Key<bool> tie_word_embeddings{this, "tie_word_embeddings", true,
                                        "use the token embedding as the output head"};
  recipe::Key<double> embd_pdrop{this, "embd_pdrop", 0.0, "dropout after the embedding",
                                 recipe::at_least(0) & recipe::below(1)};
  recipe::Key<double> attn_pdrop{this, "attn_pdrop", 0.0, "dropout on attention probabilities",
                                 recipe::at_least(0) & recipe::below(1)};
  recipe::Key<double> resid_pdrop{this, "resid_pdrop", 0.0,
                                  "dropout on what joins the residual stream",
                                  recipe::at_least(0) & recipe::below(1)};
};

DecoderSpec gpt2_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const Gpt2Options&>(section);
  DecoderSpec spec = options.common_spec();
  spec.intermediate_size = options.intermediate_size()
                               ? static_cast<std::int64_t>(options.intermediate_size()->value)
                               : 4 * spec.hidden_size;
  spec.norm = {kernels::NormKind::layer_norm, options.layer_norm_epsilon()};
  spec.norm_bias = true;
  spec.activation = options.hidden_act();
  spec.qkv_bias = spec.attention_output_bias = spec.mlp_bias = true;
  spec.learned_positions = true;
  spec.tie_word_embeddings = options.tie_word_embeddings();
  spec.embedding_dropout = options.embd_pdrop();
  spec.attention_dropout = options.attn_pdrop();
  spec.residual_dropout = options.resid_pdrop();
  return spec;
}

}  // namespace

const Architecture kGpt2{"gpt2", "GPT-2: LayerNorm, learned positions, GELU",
                         &recipe::section_of<Gpt2Options>, &gpt2_spec};

}  // namespace llmtrain::models
