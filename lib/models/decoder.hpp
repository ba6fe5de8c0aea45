#pragma once
/// The decoder-only transformer that the model families describe.

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "lib/layers/attention.hpp"
#include "lib/layers/experts.hpp"
#include "lib/layers/mlp.hpp"
#include "lib/layers/norm.hpp"
#include "lib/models/rope.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::models {

/// Feed-forward blocks of experts. Coefficients are of losses per token, means over these blocks.
struct ExpertsSpec {
  std::int64_t num_experts = 0;  // 0: no block has any
  std::int64_t intermediate_size = 0;
  std::int64_t num_shared = 0;  // as wide as so many experts, and seen by every token
  kernels::RouterRule rule;
  bool correction_bias = false;               // of the scores by which experts are chosen
  double bias_update_speed = 0;               // of it in a step; 0: it stays
  double aux_loss_coef = 0, z_loss_coef = 0;  // kernels::RouterLosses
  double capacity_factor = 0;                 // ops::RouterOptions; 0: no token is dropped
  /// Every `step`-th block has them, the last of each `step`, but for the first ones and those with
  /// a plain MLP.
  std::int64_t first = 0, step = 1;
  std::vector<std::int64_t> plain_layers;
};

/// Everything that distinguishes one decoder from another; sizes as in a Hugging Face config.json.
struct DecoderSpec {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  ops::NormOptions norm;
  bool norm_bias = false;
  kernels::Activation activation{};
  bool gated_mlp = false;
  ExpertsSpec experts;
  bool has_experts(std::int64_t layer) const;
  std::int64_t num_expert_layers() const;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  /// RMSNorm over each head of q and k, with the epsilon of the other norms.
  bool qk_norm = false;
  /// Norms of what attention and the MLP return, before it enters the residual stream.
  bool post_norms = false;
  double embedding_scale = 1;
  double attention_scale = 0;                       // of the scores; 0 = 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0 = none
  /// A score per head that takes its part of the probability and has no value.
  bool attention_sinks = false;
  /// Learned position embeddings, or biases of the scores (ALiBi, whose slopes fall to
  /// 2^-alibi_bias_max); otherwise RoPE with `rope_theta`.
  bool learned_positions = false;
  double alibi_bias_max = 0;  // 0 = none
  bool has_rope() const { return !learned_positions && alibi_bias_max == 0; }
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  /// Longest sequence that the model can be given.
  std::int64_t longest_sequence() const {
    return rope_scaling.longest_sequence(max_position_embeddings);
  }
  /// Tokens that attention sees, the query's own included, in every `window_period`-th layer from
  /// `first_window_layer` on; 0 = its whole document in all layers.
  std::int64_t sliding_window = 0;
  std::int64_t first_window_layer = 0;
  std::int64_t window_period = 1;
  std::int64_t window_of(std::int64_t layer) const {
    const std::int64_t behind = layer - first_window_layer;
    return behind >= 0 && behind % window_period == 0 ? sliding_window : 0;
  }
  bool tie_word_embeddings = false;
  double embedding_dropout = 0;
  double attention_dropout = 0;
  double residual_dropout = 0;
  double init_std = 0.02;
  /// Projections that write to the residual stream start with init_std / sqrt(2 * layers).
  bool scaled_residual_init = true;
};

/// Slopes of ALiBi's heads as MPT orders them: 2^(-bias_max (h + 1) / heads) for a power of two.
std::vector<double> alibi_slopes(std::int64_t heads, double bias_max);

/// Pre-norm block: x + dropout(attention(norm(x))), then the same with the MLP; with post_norms
/// what they return is normalised first.
class DecoderBlock {
 public:
  DecoderBlock(ParameterStore& store, const DecoderSpec& spec, int layer,
               const ops::RopeTables* rope, const Tensor* alibi = nullptr,
               const ops::RouterCounters* counters = nullptr);
  Var forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache = nullptr) const;
  /// Null where the block has none.
  const layers::Experts* experts() const { return std::get_if<layers::Experts>(&mlp_); }

 private:
  std::string name_;
  double dropout_;
  layers::Norm input_norm_;
  layers::Attention attention_;
  layers::Norm mlp_norm_;
  std::variant<layers::Mlp, layers::Experts> mlp_;
  std::optional<layers::Norm> attention_output_norm_, mlp_output_norm_;
};

/// Which rank of Axis::pp has which part of a decoder. By default the only one has all.
struct DecoderPlaces {
  int embedding = 0;
  int head = 0;             // and the final norm
  std::vector<int> blocks;  // by number; empty: where the embedding is
};

/// Stages are cut at these members: embed, the blocks, and norm + head.
class Decoder {
 public:
  /// Declares all parameters; allocates nothing. A tied table is where the embedding is and where
  /// the head is.
  Decoder(ParameterStore& store, const DecoderSpec& spec, const DecoderPlaces& places = {});

  /// Constant tables (RoPE angles, ALiBi slopes) on the device, in the statistics dtype of
  /// `compute`, for sequences of up to `seq_len`, and of max_position_embeddings if that is more.
  void allocate_tables(Device& device, DType compute, std::int64_t seq_len);

  /// Where blocks with experts count what their routers do in a step; without these nothing is.
  void allocate_counters(Device& device, DType compute);
  /// Where these note rows that had no room on their way to experts elsewhere.
  void allocate_needed(Device& device);
  /// Of the blocks with experts, in their order: choices [blocks, E] in the statistics dtype of
  /// `compute`, those kept of these (undefined without ExpertsSpec::capacity_factor), and losses
  /// FP64 [blocks, 2]; undefined without counters.
  const Tensor& router_choices() const { return router_choices_; }
  const Tensor& router_kept() const { return router_kept_; }
  const Tensor& router_losses() const { return router_losses_; }
  /// kernels::AssignSlots::needed of each block with experts.
  const Tensor& router_needed() const { return router_needed_; }
  /// Moves the routers' correction biases by what router_choices() has counted over all ranks in a
  /// step; nothing without ExpertsSpec::bias_update_speed.
  void balance_routers(const kernels::KernelCtx& ctx, const View& decision) const;

  /// Token ids int32 [rows] -> [rows, hidden].
  Var embed(const OpCtx& ctx, const Tensor& ids) const;
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  const DecoderBlock& block(int i) const { return *blocks_[static_cast<std::size_t>(i)]; }
  /// Final norm, LM head and cross-entropy; see ops::loss_head. Of `options` the model knows the
  /// classes and the cap itself.
  Var loss(const OpCtx& ctx, const Var& x, const Tensor& targets, const Tensor& loss_sum,
           ops::LossHeadOptions options) const;
  /// Logits of the given rows after the final norm, FP32 [rows, vocab]. No tape.
  Tensor logits(const OpCtx& ctx, const Tensor& x) const;

  /// What this rank has of the embedding, each block, the final norm and the head, in this order; a
  /// tied table is in two of them. `store` is the one of the construction.
  std::vector<std::vector<ParameterGroup*>> units(const ParameterStore& store) const;
  /// The table of the embedding that is the head's weight, too; null where the head has its own.
  const ParameterGroup* tied_table() const { return head_ == nullptr ? embedding_ : nullptr; }
  const DecoderSpec& spec() const { return spec_; }
  /// Of each layer, on this rank.
  const ops::HeadLayout& heads() const { return local_.heads; }

 private:
  const ParameterGroup& head_weight() const { return head_ != nullptr ? *head_ : *embedding_; }

  DecoderSpec spec_;
  layers::LocalHeads local_;
  ops::RopeTables rope_;
  Tensor alibi_;
  Tensor router_choices_, router_kept_, router_losses_, router_needed_;
  std::vector<ops::RouterCounters> router_counters_;  // of the blocks with experts
  const ParameterGroup* embedding_ = nullptr;
  const ParameterGroup* positions_ = nullptr;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::unique_ptr<layers::Norm> final_norm_;
  const ParameterGroup* head_ = nullptr;
  std::vector<std::size_t> unit_ends_;  // among the store's local groups
};

}  // namespace llmtrain::models
