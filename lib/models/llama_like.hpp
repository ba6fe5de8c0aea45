#pragma once
/// Llama (arXiv 2302.13971, 2307.09288) and its descendants: blocks of RMSNorm, RoPE, grouped-query
/// attention and a gated MLP. A family is a file that adds what differs.

#include "lib/models/architecture.hpp"
#include "lib/models/hf_config.hpp"
#include "lib/models/hidden_act.hpp"

namespace llmtrain::models {

/// Spellings and defaults of the keys below that are not Llama's.
struct LlamaLikeKeys {
  std::string_view activation = "hidden_act";
  std::string_view default_activation = "silu";
  bool tie_word_embeddings = false;
};

/// Keys that every such family has.
struct LlamaLikeOptions : CommonModelOptions {
  explicit LlamaLikeOptions(const LlamaLikeKeys& keys = {}) : keys_(keys) {}

 private:
  LlamaLikeKeys keys_;  // before the members that it names

 public:
  recipe::Required<recipe::Count> intermediate_size{this, "intermediate_size", "width of the MLP",
                                                    recipe::between(1, limits::kIntermediateSize)};
  recipe::Key<std::optional<recipe::Count>> num_key_value_heads{
      this, "num_key_value_heads", std::nullopt,
      "key/value heads, a divisor of num_attention_heads; null = as many",
      recipe::between(1, limits::kHeads)};
  recipe::Key<kernels::Activation> hidden_act{
      this, keys_.activation, *kernels::parse_activation(keys_.default_activation),
      "activation function of the gate", activation_names()};
  recipe::Key<double> rms_norm_eps{this, "rms_norm_eps", 1e-5,
                                   "added to the mean square in RMSNorm", recipe::above(0)};
  recipe::Key<double> rope_theta{this, "rope_theta", 10000.0, "base of the rotary frequencies",
                                 recipe::above(1)};
  recipe::OptionalSub<RopeScalingSection> rope_scaling{
      this, "rope_scaling", "stretches positions beyond the length of the first training"};
  recipe::Key<bool> tie_word_embeddings{this, "tie_word_embeddings", keys_.tie_word_embeddings,
                                        "use the token embedding as the output head"};
  recipe::Key<double> attention_dropout{this, "attention_dropout", 0.0,
                                        "dropout on attention probabilities",
                                        recipe::at_least(0) & recipe::below(1)};

  void validate(recipe::Issues& issues) const override;
  /// What the keys above say; the family adds the rest.
  DecoderSpec llama_like_spec() const;
  std::uint64_t longest_sequence() const override;
};

/// What transformers takes where config.json has no such key.
struct LlamaLikeDefaults {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::optional<std::int64_t> num_key_value_heads = {};  // none = num_attention_heads
  std::optional<std::int64_t> head_dim = {};             // none = hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  LlamaLikeKeys keys = {};
};

/// The keys of config.json that all such families have, but for biases and windows. The family
/// asks for its own and calls `config.finish()`.
DecoderSpec read_llama_like(HfConfigReader& config, const LlamaLikeDefaults& absent);
/// The same keys, written.
HfConfigWriter write_llama_like(std::string_view model_type, std::string_view class_name,
                                const DecoderSpec& spec, const HfExport& options,
                                const LlamaLikeKeys& keys = {});

/// How a family names the tensors of a block with experts: "<block>.<number>.<gate>.weight".
struct HfExpertNames {
  std::string_view block = "mlp";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
};
/// Names are ours, tensor by tensor, but for experts, each of which has its own.
HfLayout llama_like_hf_layout(const DecoderSpec& spec, const HfExpertNames& names);
HfLayout llama_like_hf_layout(const DecoderSpec& spec);

}  // namespace llmtrain::models
