// GPT-2 (Radford et al. 2019): LayerNorm, learned positions, multi-head attention, GELU, biases.
#include "lib/base/require.hpp"
#include "lib/models/architecture.hpp"
#include "lib/models/hf_config.hpp"
#include "lib/models/hidden_act.hpp"

namespace llmtrain::models {

namespace {

struct Gpt2Options : CommonModelOptions {
  recipe::Key<std::optional<recipe::Count>> intermediate_size{
      this, "intermediate_size", std::nullopt, "width of the MLP; null = 4 * hidden_size",
      recipe::between(1, limits::kIntermediateSize)};
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

constexpr std::string_view kOtherKeys[] = {
    "n_ctx",        "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
    "summary_type", "summary_proj_to_labels",  "summary_use_proj"};

// What every GPT-2 has.
void set_family(DecoderSpec& spec) {
  spec.norm.kind = kernels::NormKind::layer_norm;
  spec.norm_bias = true;
  spec.qkv_bias = spec.attention_output_bias = spec.mlp_bias = true;
  spec.learned_positions = true;
}

DecoderSpec gpt2_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const Gpt2Options&>(section);
  DecoderSpec spec = options.common_spec();
  set_family(spec);
  spec.intermediate_size = options.intermediate_size()
                               ? static_cast<std::int64_t>(options.intermediate_size()->value)
                               : 4 * spec.hidden_size;
  spec.norm.eps = options.layer_norm_epsilon();
  spec.activation = options.hidden_act();
  spec.tie_word_embeddings = options.tie_word_embeddings();
  spec.embedding_dropout = options.embd_pdrop();
  spec.attention_dropout = options.attn_pdrop();
  spec.residual_dropout = options.resid_pdrop();
  return spec;
}

// Conv1D of transformers keeps [in, out].
void add_linear(HfLayout& layout, const std::string& name, const std::vector<std::string>& ours) {
  HfTensor weight{name + ".weight", {}, true};
  HfTensor bias{name + ".bias", {}, false};
  for (const std::string& linear : ours) {
    weight.members.push_back(linear + ".weight");
    bias.members.push_back(linear + ".bias");
  }
  layout.tensors.push_back(std::move(weight));
  layout.tensors.push_back(std::move(bias));
}

void add_norm(HfLayout& layout, const std::string& name, const std::string& ours) {
  for (const char* kind : {".weight", ".bias"}) {
    layout.tensors.push_back({name + kind, {ours + kind}, false});
  }
}

HfLayout gpt2_hf_layout(const DecoderSpec& spec) {
  HfLayout layout;
  layout.prefix = "transformer.";
  layout.tensors = {{"transformer.wte.weight", {"model.embed_tokens.weight"}, false},
                    {"transformer.wpe.weight", {"model.embed_positions.weight"}, false}};
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string theirs = fmt::format("transformer.h.{}.", i);
    const std::string ours = fmt::format("model.layers.{}.", i);
    const std::string attention = ours + "self_attn.";
    add_norm(layout, theirs + "ln_1", ours + "input_layernorm");
    add_linear(layout, theirs + "attn.c_attn",
               {attention + "q_proj", attention + "k_proj", attention + "v_proj"});
    add_linear(layout, theirs + "attn.c_proj", {attention + "o_proj"});
    add_norm(layout, theirs + "ln_2", ours + "post_attention_layernorm");
    add_linear(layout, theirs + "mlp.c_fc", {ours + "mlp.up_proj"});
    add_linear(layout, theirs + "mlp.c_proj", {ours + "mlp.down_proj"});
    layout.constants.push_back(theirs + "attn.bias");  // the causal mask
    layout.constants.push_back(theirs + "attn.masked_bias");
  }
  add_norm(layout, "transformer.ln_f", "model.norm");
  if (spec.tie_word_embeddings) {
    layout.copies = {{"lm_head.weight", "transformer.wte.weight"}};
  } else {
    layout.tensors.push_back({"lm_head.weight", {"lm_head.weight"}, false});
  }
  return layout;
}

std::string gpt2_hf_config(const DecoderSpec& spec, const HfExport& options) {
  require<RecipeError>(
      spec.head_dim * spec.num_attention_heads == spec.hidden_size,
      "model.head_dim: transformers' GPT-2 has hidden_size / num_attention_heads = "
      "{} / {}, not {}; a Llama may have any",
      spec.hidden_size, spec.num_attention_heads, spec.head_dim);
  HfConfigWriter config("gpt2", "GPT2LMHeadModel", spec, options);
  config.set("activation_function", kernels::to_string(spec.activation));
  config.set("attn_pdrop", spec.attention_dropout);
  config.set("embd_pdrop", spec.embedding_dropout);
  config.set("layer_norm_epsilon", spec.norm.eps);
  config.set("n_embd", spec.hidden_size);
  config.set("n_head", spec.num_attention_heads);
  config.set("n_inner", spec.intermediate_size);
  config.set("n_layer", spec.num_hidden_layers);
  config.set("n_positions", spec.max_position_embeddings);
  config.set("resid_pdrop", spec.residual_dropout);
  return config.text();
}

// Absent keys have the defaults of transformers' GPT2Config.
DecoderSpec gpt2_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec;
  set_family(spec);
  spec.vocab_size = config.size("vocab_size", limits::kVocabSize, 50257);
  spec.hidden_size = config.size("n_embd", limits::kHiddenSize, 768);
  spec.num_hidden_layers = config.size("n_layer", limits::kLayers, 12);
  spec.num_attention_heads = config.size("n_head", limits::kHeads, 12);
  spec.num_key_value_heads = spec.num_attention_heads;
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("n_head", fmt::format("does not divide n_embd {}", spec.hidden_size));
  }
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.max_position_embeddings = config.size("n_positions", limits::kPositions, 1024);
  spec.intermediate_size = config.size("n_inner", limits::kIntermediateSize, 4 * spec.hidden_size);
  spec.activation = config.activation("activation_function", "gelu_new");
  spec.norm.eps = config.positive("layer_norm_epsilon", 1e-5);
  spec.tie_word_embeddings = config.flag("tie_word_embeddings", true);
  spec.embedding_dropout = config.probability("embd_pdrop", 0.1);
  spec.attention_dropout = config.probability("attn_pdrop", 0.1);
  spec.residual_dropout = config.probability("resid_pdrop", 0.1);
  spec.init_std = config.positive("initializer_range", 0.02);
  config.only("scale_attn_weights", "true");
  config.only("scale_attn_by_inverse_layer_idx", "false");
  // The order of operations within attention, and heads for other tasks than language modelling.
  config.ignore(kOtherKeys);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kGpt2{"gpt2",
                         "GPT-2: LayerNorm, learned positions, GELU",
                         &recipe::section_of<Gpt2Options>,
                         &gpt2_spec,
                         &gpt2_hf_layout,
                         &gpt2_hf_config,
                         &gpt2_from_hf_config};

}  // namespace llmtrain::models
