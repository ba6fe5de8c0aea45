// Llama (arXiv 2302.13971, 2307.09288): RMSNorm, RoPE, grouped-query attention, SwiGLU.
#include "lib/base/require.hpp"
#include "lib/models/architecture.hpp"
#include "lib/models/hf_config.hpp"
#include "lib/models/hidden_act.hpp"

namespace llmtrain::models {

namespace {

struct LlamaOptions : CommonModelOptions {
  recipe::Required<recipe::Count> intermediate_size{this, "intermediate_size", "width of the MLP",
                                                    recipe::between(1, limits::kIntermediateSize)};
  recipe::Key<std::optional<recipe::Count>> num_key_value_heads{
      this, "num_key_value_heads", std::nullopt,
      "key/value heads, a divisor of num_attention_heads; null = as many",
      recipe::between(1, limits::kHeads)};
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

// What every Llama has.
void set_family(DecoderSpec& spec) {
  spec.norm.kind = kernels::NormKind::rms_norm;
  spec.gated_mlp = true;
}

DecoderSpec llama_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const LlamaOptions&>(section);
  DecoderSpec spec = options.common_spec();
  set_family(spec);
  spec.intermediate_size = static_cast<std::int64_t>(options.intermediate_size().value);
  if (options.num_key_value_heads()) {
    spec.num_key_value_heads = static_cast<std::int64_t>(options.num_key_value_heads()->value);
  }
  spec.norm.eps = options.rms_norm_eps();
  spec.activation = options.hidden_act();
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  spec.mlp_bias = options.mlp_bias();
  spec.rope_theta = options.rope_theta();
  spec.tie_word_embeddings = options.tie_word_embeddings();
  spec.attention_dropout = options.attention_dropout();
  return spec;
}

// Names are ours, tensor by tensor.
HfLayout llama_hf_layout(const DecoderSpec& spec) {
  HfLayout layout;
  const auto add = [&](const std::string& name) {
    layout.tensors.push_back({name, {name}, false});
  };
  const auto add_linear = [&](const std::string& name, bool bias) {
    add(name + ".weight");
    if (bias) add(name + ".bias");
  };
  add("model.embed_tokens.weight");
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    add(block + "input_layernorm.weight");
    for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
      add_linear(block + "self_attn." + projection, spec.qkv_bias);
    }
    add_linear(block + "self_attn.o_proj", spec.attention_output_bias);
    add(block + "post_attention_layernorm.weight");
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      add_linear(block + "mlp." + projection, spec.mlp_bias);
    }
    layout.constants.push_back(block + "self_attn.rotary_emb.inv_freq");
  }
  add("model.norm.weight");
  if (spec.tie_word_embeddings) {
    layout.copies = {{"lm_head.weight", "model.embed_tokens.weight"}};
  } else {
    add("lm_head.weight");
  }
  return layout;
}

std::string llama_hf_config(const DecoderSpec& spec, const HfExport& options) {
  require<RecipeError>(spec.hidden_size % spec.num_attention_heads == 0,
                       "model.num_attention_heads: transformers opens a Llama only if its {} heads "
                       "divide hidden_size {}",
                       spec.num_attention_heads, spec.hidden_size);
  HfConfigWriter config("llama", "LlamaForCausalLM", spec, options);
  config.set("attention_bias", spec.qkv_bias);
  config.set("attention_dropout", spec.attention_dropout);
  config.set("head_dim", spec.head_dim);
  config.set("hidden_act", to_string(spec.activation));
  config.set("hidden_size", spec.hidden_size);
  config.set("intermediate_size", spec.intermediate_size);
  config.set("max_position_embeddings", spec.max_position_embeddings);
  config.set("mlp_bias", spec.mlp_bias);
  config.set("num_attention_heads", spec.num_attention_heads);
  config.set("num_hidden_layers", spec.num_hidden_layers);
  config.set("num_key_value_heads", spec.num_key_value_heads);
  config.set("rms_norm_eps", spec.norm.eps);
  config.set_rope_theta(spec.rope_theta);
  return config.text();
}

// Absent keys have the defaults of transformers' LlamaConfig.
DecoderSpec llama_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec;
  set_family(spec);
  config.only("model_type", R"("llama")");
  spec.vocab_size = config.size("vocab_size", limits::kVocabSize, 32000);
  spec.hidden_size = config.size("hidden_size", limits::kHiddenSize, 4096);
  spec.intermediate_size = config.size("intermediate_size", limits::kIntermediateSize, 11008);
  spec.num_hidden_layers = config.size("num_hidden_layers", limits::kLayers, 32);
  spec.num_attention_heads = config.size("num_attention_heads", limits::kHeads, 32);
  spec.num_key_value_heads =
      config.size("num_key_value_heads", limits::kHeads, spec.num_attention_heads);
  if (spec.num_attention_heads % spec.num_key_value_heads != 0) {
    config.refuse("num_key_value_heads",
                  fmt::format("does not divide num_attention_heads {}", spec.num_attention_heads));
  }
  if (!config.has("head_dim") && spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("num_attention_heads",
                  fmt::format("does not divide hidden_size {}", spec.hidden_size));
  }
  spec.head_dim =
      config.size("head_dim", limits::kHeadDim, spec.hidden_size / spec.num_attention_heads);
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "RoPE needs an even width of heads");
  spec.max_position_embeddings = config.size("max_position_embeddings", limits::kPositions, 2048);
  spec.activation = config.activation("hidden_act", "silu");
  spec.norm.eps = config.positive("rms_norm_eps", 1e-6);
  spec.rope_theta = config.rope_theta(10000);
  spec.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  spec.mlp_bias = config.flag("mlp_bias", false);
  spec.attention_dropout = config.probability("attention_dropout", 0);
  spec.init_std = config.positive("initializer_range", 0.02);
  config.only("pretraining_tp", "1");  // more slices the products, for one cluster's rounding
  config.finish();
  return spec;
}

}  // namespace

const Architecture kLlama{"llama",
                          "Llama 2 and 3: RMSNorm, RoPE, grouped-query attention, SwiGLU",
                          &recipe::section_of<LlamaOptions>,
                          &llama_spec,
                          &llama_hf_layout,
                          &llama_hf_config,
                          &llama_from_hf_config};

}  // namespace llmtrain::models
