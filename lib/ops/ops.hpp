#pragma once
/// Differentiable operations: fused forward/backward pairs over kernels. Activations are [rows,
/// cols] matrices whose rows `ctx.rows` describes. With ctx.tape set, each call records one node.

#include <optional>
#include <string_view>

#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/norm.hpp"
#include "lib/autograd/tape.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::ops {

/// Where an operation of ctx's micro-batch adds to the gradient of a group: of its shape.
inline const Tensor& gradient_sink(const OpCtx& ctx, const ParameterGroup& group,
                                   GradientPart part = GradientPart::body) {
  return ctx.sinks == nullptr ? group.grad() : ctx.sinks->sink(ctx.kernel, group, part);
}

/// Parameters of a linear layer; a bias is optional.
struct LinearWeights {
  const ParameterGroup* weight = nullptr;
  const ParameterGroup* bias = nullptr;
  /// False where another rank adds the bias into a sum over ranks; its gradient is made here too.
  bool adds_bias = true;
};

/// y = x w^T (+ bias). x [rows, in], weight group [out, in], bias group [out] or null. The product
/// of the weight gradient is the node's weight part.
Var linear(const OpCtx& ctx, const Var& x, const LinearWeights& weights);
inline Var linear(const OpCtx& ctx, const Var& x, const ParameterGroup& weight,
                  const ParameterGroup* bias) {
  return linear(ctx, x, LinearWeights{&weight, bias});
}

/// linear(), of what an MLP's activation function reads. Recomputable as "up_proj", unless ctx
/// quantizes its operands, whose scales follow what they were given.
Var up_projection(const OpCtx& ctx, const Var& x, const LinearWeights& weights);

/// Into a part of the model that the ranks of Axis::tp share: x itself; backward, the sum of their
/// gradients. With reduce_from_tp a pair of conjugates: f and g of Megatron-LM (arXiv 1909.08053).
/// Where the ranks share the rows in between (ctx.rows->shared()), x is the own rows: all are
/// gathered, again in the backward rather than kept, and each gets its own rows of the sum (g-bar
/// and its conjugate of arXiv 2205.05198).
Var copy_to_tp(const OpCtx& ctx, const Var& x);
/// Out of such a part: the sum of y over the ranks of Axis::tp, in y's dtype and, unless rows are
/// shared, place, so nothing may have saved y; backward, the gradient itself. The own rows of it
/// where rows are shared; backward, the gradients of all rows.
Var reduce_from_tp(const OpCtx& ctx, Var y);

/// y = f(x w_in^T (+ b_in)) w_out^T (+ b_out), with f in the epilogue of the products around it
/// where the device's products have it, else in kernels of its own. In an epilogue f sees z before
/// that is rounded, so where f is recomputed as "activation", or the product before it as
/// "up_proj", one such product makes both again.
Var mlp(const OpCtx& ctx, const Var& x, const LinearWeights& in, kernels::Activation f,
        const LinearWeights& out);

/// y = a + b.
Var add(const OpCtx& ctx, const Var& a, const Var& b);

/// y = factor * x, with the factor rounded to the dtype of x.
Var scale(const OpCtx& ctx, const Var& x, double factor);

/// Rows of `table` by token id (int32 [rows]); the ranks of Axis::tp may share the table's rows,
/// and those of the result (ctx.rows->shared()).
Var embedding(const OpCtx& ctx, const Tensor& ids, const ParameterGroup& table);
/// The sum of two look-ups: tokens and learned positions.
Var embedding_sum(const OpCtx& ctx, const Tensor& ids, const ParameterGroup& table,
                  const Tensor& other_ids, const ParameterGroup& other_table);

struct NormOptions {
  kernels::NormKind kind = kernels::NormKind::rms_norm;
  double eps = 1e-5;
  double weight_offset = 0;  // what multiplies is weight_offset + weight
};
struct NormResult {
  Var sum;  // x + residual, the new residual stream
  Var y;
};
/// y = norm(x). Recomputable as "norm".
Var norm(const OpCtx& ctx, const Var& x, const ParameterGroup& weight, const ParameterGroup* bias,
         const NormOptions& options);
/// sum = x + residual; y = norm(sum), in one pass.
NormResult residual_norm(const OpCtx& ctx, const Var& x, const Var& residual,
                         const ParameterGroup& weight, const ParameterGroup* bias,
                         const NormOptions& options);

/// y = f(x). Recomputable as "activation".
Var activation(const OpCtx& ctx, const Var& x, kernels::Activation f);
/// y = f(gate) * up with gate and up side by side in x [rows, 2 * cols]. Recomputable as
/// "activation".
Var gated_activation(const OpCtx& ctx, const Var& x, kernels::Activation f);

/// Dropout of probability p in the stream named `name`; x itself when p is 0 or outside training.
Var dropout(const OpCtx& ctx, const Var& x, double p, std::string_view name);

/// Head layout of a fused row [q heads | k heads | v heads].
struct HeadLayout {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t q_cols() const { return num_heads * head_dim; }
  std::int64_t kv_cols() const { return num_kv_heads * head_dim; }
  std::int64_t cols() const { return q_cols() + 2 * kv_cols(); }
};

/// A copy of qkv [rows, heads.cols()] whose q and k heads are normalised, each by its own RMS, and
/// scaled by `q_weight` and `k_weight` [head_dim].
Var head_norm(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads,
              const ParameterGroup& q_weight, const ParameterGroup& k_weight, double eps);

/// Angles of RoPE: cosine and sine, [max_position, rotary_dim / 2], FP32 (FP64 for fp64).
struct RopeTables {
  Tensor cosine, sine;
  std::int64_t rotary_dim = 0;
};

/// Turns the q and k columns of qkv in place: nothing may have saved qkv, which holds right after
/// the linear layer or the head_norm that made it. Positions are ctx.rows->embedding_position.
Var rope(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads, const RopeTables& tables);

/// head_norm and rope in one kernel each way: a copy of qkv whose q and k heads are normalised and
/// turned, with one rounding.
Var head_norm_rope(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads,
                   const ParameterGroup& q_weight, const ParameterGroup& k_weight, double eps,
                   const RopeTables& tables);

struct AttentionOptions {
  HeadLayout heads;
  double scale = 1;
  double softcap = 0;                     // of the scores; 0 = none
  const Tensor* alibi = nullptr;          // slopes [num_heads]; null = none
  const ParameterGroup* sinks = nullptr;  // [num_heads]; null = none
  std::int64_t window = 0;
  double dropout = 0;
  std::string_view dropout_name;
  /// Where other ranks have further heads of the layer: the first here, and how many there are; 0:
  /// those of `heads`. For dropout.
  std::int64_t first_head = 0, heads_of_layer = 0;
};
/// Causal attention within each document of ctx.rows; returns [rows, q_cols]. Recomputable as
/// "attention".
Var attention(const OpCtx& ctx, const Var& qkv, const AttentionOptions& options);

/// Keys and values of earlier positions, for decoding. All rows of a sequence share one cache.
struct KvCache {
  Tensor k, v;      // [sequences * capacity, kv_cols]
  Tensor position;  // int32 [sequences * capacity]; beyond `length` larger than any query position
  std::int64_t capacity = 0;
  std::int64_t length = 0;
};
/// Attention of one sequence's new rows over cache + themselves; appends k and v to the cache. The
/// caller advances `length` when all layers have run. No tape.
Tensor cached_attention(const OpCtx& ctx, const Tensor& qkv, const AttentionOptions& options,
                        KvCache& cache);

struct LossHeadOptions {
  /// Classes of the vocabulary; further rows of the weight are padding.
  std::int64_t num_classes = 0;
  double softcap = 0;  // of the logits; 0 = none
  /// Factor of the z-loss (kernels::CrossEntropy) that training adds to the loss; 0 = none.
  double z_loss_coef = 0;
  /// Bound on the bytes of one chunk of logits.
  std::uint64_t chunk_bytes = 0;
  /// Logits are rounded to the type of x, and their gradients take their place; else they are FP32
  /// (FP64 for fp64).
  bool narrow_logits = false;
};
/// Cross-entropy of x w^T against targets (int32 [rows], -1 = untrained), in chunks of rows, so
/// that the logits of all tokens never exist. Adds the sum of the losses to `loss_sum` (FP64 [1]),
/// in training with z_loss_coef that of the z-losses to its second element (FP64 [2]).
/// With a tape it computes dx and adds the weight gradient in the same pass over the logits (they
/// cost a third of the head's products to make again), scaled by ctx.step.grad_scale and the loss's
/// scale; the result is the root of the backward walk. Where the ranks of Axis::tp share the rows
/// of w, they exchange three numbers per token and chunk, and the terms of dx.
Var loss_head(const OpCtx& ctx, const Var& x, const ParameterGroup& weight, const Tensor& targets,
              const Tensor& loss_sum, const LossHeadOptions& options);

/// Logits of x [rows, hidden] in FP32 (FP64 for fp64), capped as in the loss, of the whole
/// vocabulary on every rank of Axis::tp. No tape. For few rows: ranks send them one by one.
Tensor logits(const OpCtx& ctx, const Tensor& x, const ParameterGroup& weight, double softcap);

}  // namespace llmtrain::ops
