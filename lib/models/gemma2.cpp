// Gemma 2 (arXiv 2408.00118): Llama with capped scores and logits, a window in every other layer,
// norms on both sides of attention and MLP whose weights count from one, and a scaled embedding.
#include <cmath>

#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

namespace {

constexpr LlamaLikeKeys kKeys{.activation = "hidden_activation",
                              .default_activation = "gelu_pytorch_tanh",
                              .tie_word_embeddings = true};

struct Gemma2Options : LlamaLikeOptions {
  Gemma2Options() : LlamaLikeOptions(kKeys) {}

  recipe::Key<std::optional<recipe::Count>> sliding_window{
      this, "sliding_window", recipe::Count{4096},
      "tokens that attention sees in layers 0, 2, 4 ..., the query's own included; null = the "
      "whole "
      "document",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
  recipe::Key<double> query_pre_attn_scalar{this, "query_pre_attn_scalar", 256.0,
                                            "scores are divided by its square root",
                                            recipe::above(0)};
  recipe::Key<std::optional<double>> attn_logit_softcapping{
      this, "attn_logit_softcapping", 50.0, "bound that tanh sets to scores; null = none",
      recipe::above(0)};
  recipe::Key<std::optional<double>> final_logit_softcapping{
      this, "final_logit_softcapping", 30.0, "bound that tanh sets to logits; null = none",
      recipe::above(0)};
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};
};

// What every Gemma 2 is.
void set_gemma2(DecoderSpec& spec) {
  spec.norm.weight_offset = 1;
  spec.post_norms = true;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  spec.window_period = 2;
}

DecoderSpec gemma2_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const Gemma2Options&>(section);
  DecoderSpec spec = options.llama_like_spec();
  set_gemma2(spec);
  if (options.sliding_window()) {
    spec.sliding_window = static_cast<std::int64_t>(options.sliding_window()->value);
  }
  spec.attention_scale = 1 / std::sqrt(options.query_pre_attn_scalar());
  spec.attention_softcap = options.attn_logit_softcapping().value_or(0);
  spec.logit_softcap = options.final_logit_softcapping().value_or(0);
  spec.qkv_bias = spec.attention_output_bias = options.attention_bias();
  return spec;
}

std::string gemma2_hf_config(const DecoderSpec& spec, const HfExport& options) {
  HfConfigWriter config = write_llama_like("gemma2", "Gemma2ForCausalLM", spec, options, kKeys);
  config.set("attention_bias", spec.qkv_bias);
  config.set_or_null("attn_logit_softcapping", spec.attention_softcap);
  config.set_or_null("final_logit_softcapping", spec.logit_softcap);
  // The spec holds its inverse square root. transformers wants a whole number as such.
  const double scalar = 1 / (spec.attention_scale * spec.attention_scale);
  const std::int64_t whole = std::llround(scalar);
  if (std::abs(scalar - static_cast<double>(whole)) < 1e-9 * scalar) {
    config.set("query_pre_attn_scalar", whole);
  } else {
    config.set("query_pre_attn_scalar", scalar);
  }
  config.set_layer_types(spec);
  spec.sliding_window > 0 ? config.set("sliding_window", spec.sliding_window)
                          : config.set_null("sliding_window");
  return config.text();
}

// What published files say beside: the activation's older spelling, which transformers does not
// read, and how to generate.
constexpr std::string_view kInert[] = {"cache_implementation", "hidden_act", "sliding_window_size"};

// A number above 0, or 0 for null; absent has a default.
double cap_of(HfConfigReader& config, std::string_view key, double absent) {
  return config.is_null(key) ? 0 : config.positive(key, absent);
}

DecoderSpec gemma2_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec = read_llama_like(config, {.vocab_size = 256000,
                                              .hidden_size = 2304,
                                              .intermediate_size = 9216,
                                              .num_hidden_layers = 26,
                                              .num_attention_heads = 8,
                                              .num_key_value_heads = 4,
                                              .head_dim = 256,
                                              .max_position_embeddings = 8192,
                                              .keys = kKeys});
  set_gemma2(spec);
  if (!config.is_null("sliding_window")) {
    spec.sliding_window = config.size("sliding_window", limits::kPositions, 4096);
  }
  spec.attention_scale = 1 / std::sqrt(config.positive("query_pre_attn_scalar", 256));
  spec.attention_softcap = cap_of(config, "attn_logit_softcapping", 50);
  spec.logit_softcap = cap_of(config, "final_logit_softcapping", 30);
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  config.only_layer_types(spec,
                          "only a window in every other layer, beginning with the first, is "
                          "implemented");
  config.only("use_bidirectional_attention", "false");
  config.ignore(kInert);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kGemma2{"gemma2",
                           "Gemma 2: Llama with capped scores and logits, alternating windows and "
                           "norms on both sides",
                           &recipe::section_of<Gemma2Options>,
                           &gemma2_spec,
                           &llama_like_hf_layout,
                           &gemma2_hf_config,
                           &gemma2_from_hf_config};

}  // namespace llmtrain::models
