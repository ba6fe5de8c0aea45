#pragma once
/// Causal attention over packed documents, tiled: never a [T, T] matrix in memory.

#include "kernels/kernel.hpp"
#include "kernels/step_scalars.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain::kernels {

/// Dropout on attention probabilities: with h the head's number in its layer, element
/// ((sample * heads + h) * seq_len + q) * seq_len + k of the stream `key` at `step` is kept when
/// its uniform is >= p, and scaled by 1 / (1 - p).
struct AttentionDropout {
  double p = 0;
  PhiloxKey key;
  std::uint64_t step = 0;
  std::int64_t seq_len = 0;
  /// Where a call has some of a layer's heads: the first of them, and how many the layer has. 0
  /// heads: it has those of the call.
  std::int64_t first_head = 0, heads = 0;
  std::int64_t heads_of_layer(std::int64_t heads_of_call) const {
    return heads > 0 ? heads : heads_of_call;
  }
  /// Where given (StepScalars), its step counts, as it is when the kernel runs.
  View scalars;
  /// For kernels of the CPU.
  std::uint64_t step_now() const { return kernels::step_now(scalars, step); }
};

/// What the host knows of the positions in the views of an AttentionShape. A claim that does not
/// hold is an InternalError on the CPU, and not seen on a GPU.
enum class KnownRows : std::uint8_t {
  nothing,
  in_order,      // row i of every sequence is at position i, as query and as key
  one_document,  // and all documents begin at position 0
};

/// What both directions share. Legend: S sequences, Tq query rows and Tk key rows of each, H query
/// heads, G key/value heads (G divides H; head h reads h / (H / G)), D head_dim.
///
/// Query row i of a sequence sees key row j of the same sequence when
///   k_position[j] <= q_position[i]  and  k_position[j] >= q_document_begin[i]
///   and (window == 0 or q_position[i] - k_position[j] < window).
/// Positions are those in the whole sample, so that parts of a sequence (sequence parallelism, a KV
/// cache) use the same kernel; Tq and Tk may differ. A query row that sees nothing gives out = 0
/// and lse = -inf (or the sink), and contributes no gradient.
struct AttentionShape {
  std::int64_t num_sequences = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  double softcap = 0;  // of scores s: softcap * tanh(s / softcap); 0 = none
  /// Slopes [H] of ALiBi (arXiv 2108.12409), FP32 (FP64 for fp64), or undefined: query i adds
  /// slope * (k_position[j] - q_position[i]) to its score of key j, after the cap.
  View alibi;
  /// A score [H] that every query of the head has beside its keys', and no value (gpt-oss): it
  /// takes its part of the probability. In the dtype of q or FP32, or undefined.
  View sink;
  std::int64_t window = 0;
  View q_position, q_document_begin;  // int32 [S * Tq]
  View k_position;                    // int32 [S * Tk]
  View q_sample;                      // int64 [S]: sample in the step, for dropout
  KnownRows known_rows = KnownRows::nothing;
  AttentionDropout dropout;
};

/// out = softmax(scale q k^T, capped and masked) v; lse = log sum exp of these scores, the sink's
/// included.
/// q, out: [S*Tq, H*D], k, v: [S*Tk, G*D], all strided, fp64 | fp32 | bf16 | fp16; lse [S, H, Tq]
/// FP32 (FP64 for fp64). out may be FP32 with narrower types, where it is part of a sum
/// (AttentionMerge). Scores and sums in FP32. Online softmax as in FlashAttention-2 (arXiv
/// 2307.08691).
struct AttentionForward {
  static constexpr std::string_view name = "attention_forward";
  AttentionShape shape;
  View q, k, v;
  View out, lse;
  void check() const;
  Cost cost() const;  // causal count: half of the full product when Tq == Tk
  DType dtype() const { return q.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {shape.num_sequences, q.rows() / std::max<std::int64_t>(1, shape.num_sequences),
            shape.num_heads, shape.head_dim};
  }
  std::uint64_t workspace_bytes(int threads) const;
};

/// dq, dk, dv from dout, with the *final* out and lse (which, under ring or all-gather sequence
/// parallelism, cover more keys than k holds): delta = rowsum(dout * out), p = exp(s - lse),
/// ds = p * (dout v^T - delta), times the slope of the cap. Deterministic: each of dq, dk, dv is
/// summed in a fixed order. dq, dk, dv: strided, overwritten, same dtype as q, or all FP32, where
/// they are parts of sums. With a sink, dsink [H] (FP32, FP64 for fp64) -= sum over all
/// queries of exp(sink - lse) * delta, in their order.
struct AttentionBackward {
  static constexpr std::string_view name = "attention_backward";
  AttentionShape shape;
  View q, k, v, out, lse, dout;
  View dq, dk, dv, dsink;
  void check() const;
  Cost cost() const;
  DType dtype() const { return q.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {shape.num_sequences, q.rows() / std::max<std::int64_t>(1, shape.num_sequences),
            shape.num_heads, shape.head_dim};
  }
  std::uint64_t workspace_bytes(int threads) const;
};

/// Joins what queries get from two sets of keys, as if they had seen all of them at once:
/// out = (exp(lse) out + exp(part_lse) part_out) / (exp(lse) + exp(part_lse)) and lse = the
/// logarithm of that sum; -inf for a query that saw nothing. out, part_out: [S*Tq, H*D], strided,
/// lse, part_lse: [S, H, Tq], all FP32 or all FP64.
struct AttentionMerge {
  static constexpr std::string_view name = "attention_merge";
  std::int64_t num_sequences = 0;
  std::int64_t num_heads = 0;
  View part_out, part_lse;
  View out, lse;
  void check() const;
  Cost cost() const;
  DType dtype() const { return out.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {out.rows(), out.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Rotary position embedding (arXiv 2104.09864), Hugging Face's half-split form: with h = D/2, pair
/// (x[i], x[i+h]) turns by the angle position * frequency[i]; y[i] = x[i] c - x[i+h] s,
/// y[i+h] = x[i+h] c + x[i] s. `inverse` turns back (the backward). x, y: [rows, heads*D], strided,
/// y may alias x; cosine, sine: [max_position, h] FP32 (FP64 for fp64); position int32 [rows],
/// in [0, max_position) (the CPU checks; on a GPU pairs of other rows become NaN). Only the first
/// `rotary_dim` of D components turn (h = rotary_dim / 2).
struct Rope {
  static constexpr std::string_view name = "rope";
  View x, y, cosine, sine, position;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  bool inverse = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
