#pragma once
/// The decoder-only transformer that the model families describe.

#include <memory>
#include <vector>

#include "lib/layers/attention.hpp"
#include "lib/layers/mlp.hpp"
#include "lib/layers/norm.hpp"

namespace llmtrain::models {

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
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  /// Learned position embeddings; otherwise RoPE with `rope_theta`.
  bool learned_positions = false;
  double rope_theta = 10000;
  bool tie_word_embeddings = false;
  double embedding_dropout = 0;
  double attention_dropout = 0;
  double residual_dropout = 0;
  double init_std = 0.02;
  /// Projections that write to the residual stream start with init_std / sqrt(2 * layers).
  bool scaled_residual_init = true;
};

/// Pre-norm block: x + dropout(attention(norm(x))), then the same with the MLP.
class DecoderBlock {
 public:
  DecoderBlock(ParameterStore& store, const DecoderSpec& spec, int layer,
               const ops::RopeTables* rope);
  Var forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache = nullptr) const;

 private:
  std::string name_;
  double dropout_;
  layers::Norm input_norm_;
  layers::Attention attention_;
  layers::Norm post_attention_norm_;
  layers::Mlp mlp_;
};

/// Stages are cut at these members: embed, the blocks, and norm + head.
class Decoder {
 public:
  /// Declares all parameters; allocates nothing.
  Decoder(ParameterStore& store, const DecoderSpec& spec);

  /// Constant tables (RoPE angles) on the device, in the statistics dtype of `compute`.
  void allocate_tables(Device& device, DType compute);

  /// Token ids int32 [rows] -> [rows, hidden].
  Var embed(const OpCtx& ctx, const Tensor& ids) const;
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  const DecoderBlock& block(int i) const { return *blocks_[static_cast<std::size_t>(i)]; }
  /// Final norm, LM head and cross-entropy; see ops::loss_head.
  Var loss(const OpCtx& ctx, const Var& x, const Tensor& targets, const Tensor& loss_sum) const;
  /// Logits of the given rows after the final norm, FP32 [rows, vocab]. No tape.
  Tensor logits(const OpCtx& ctx, const Tensor& x) const;

  const DecoderSpec& spec() const { return spec_; }

 private:
  const ParameterGroup& head_weight() const { return head_ != nullptr ? *head_ : *embedding_; }

  DecoderSpec spec_;
  ops::RopeTables rope_;
  const ParameterGroup* embedding_ = nullptr;
  const ParameterGroup* positions_ = nullptr;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  std::unique_ptr<layers::Norm> final_norm_;
  const ParameterGroup* head_ = nullptr;
};

}  // namespace llmtrain::models
