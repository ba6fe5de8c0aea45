#pragma once
/// Which kernel computes an attention on a GPU, and what lies in its workspace.

#include <string_view>

#include "kernels/attention.hpp"

namespace llmtrain::kernels::cuda {

enum class AttentionKernel : std::uint8_t {
  plain,      // products on the cores' own units, in the type of scores
  tensor_64,  // bf16 or fp16 on tensor cores; the number is what head_dim is padded to
  tensor_96,
  tensor_128,
  tensor_256,
  warpgroup_64,  // the same with wgmma, on sm_90a alone
  warpgroup_128,
};
std::string_view to_string(AttentionKernel kernel);

/// The head_dim above which no kernel goes.
inline constexpr std::int64_t kMaxHeadDim = 256;

/// A pure function of the problem: bf16 or fp16 whose heads are whole chunks of 16 bytes, at most
/// 256 elements, goes to tensor cores; with heads of at most 128 elements to the kernels with wgmma
/// where there are `warpgroups` (has_wgmma, code for it, and kernels that have
/// been found to compute what the others do). `aligned` says that all rows of all matrices begin at
/// multiples of 16 bytes.
AttentionKernel attention_rule(const AttentionShape& shape, DType dtype, bool aligned,
                               bool warpgroups);

/// Rows whose extreme positions are known: of a query or key side, within a sequence.
inline constexpr std::int64_t kAttentionGranule = 32;

/// Workspace of both directions, in this order: extreme positions of the granules of queries, of
/// those of keys, and delta [S, H, Tq] (backward only).
struct AttentionScratch {
  std::int64_t query_granules, key_granules;  // of one sequence
  std::uint64_t key_bounds, delta;            // where they begin, in bytes
  std::uint64_t forward_bytes, backward_bytes;

  /// `wide`: bytes of a statistic.
  AttentionScratch(const AttentionShape& shape, std::int64_t tq, std::int64_t tk,
                   std::uint64_t wide);
};

// ---- cuDNN
// -------------------------------------------------------------------------------------------------

/// Why an attention is not given to cuDNN. What is beyond this only the library knows: whether it
/// has an engine for the GPU and the shape, and what workspace that needs.
enum class CudnnObstacle : std::uint8_t {
  none,
  choice,  // AttentionChoice::own
  layout,  // Determinism::layout, which leaves nothing to a library
  dtype,
  parts,  // results are wider than the operands: parts of sums
  head_dim,
  softcap,
  alibi,
  sink,
  dropout,
  scale,
  unknown_rows,
  single_row,
  documents,
  strides,
};
/// "softcap"; empty for none and choice.
std::string_view to_string(CudnnObstacle obstacle);
/// Whether it is the recipe's, so that AttentionChoice::cudnn is an error, and not the launch's.
bool is_recipes(CudnnObstacle obstacle);

/// Pure functions of the launch, addresses aside, and of `ctx.attention` and `ctx.determinism`.
/// With AttentionChoice::automatic documents are our kernels': they leave out tiles that a document
/// hides from another.
CudnnObstacle cudnn_obstacle(const KernelCtx& ctx, const AttentionForward& op);
CudnnObstacle cudnn_obstacle(const KernelCtx& ctx, const AttentionBackward& op);

/// Workspace of an attention by cuDNN, in this order: in the backward delta [S, H, T] and, where
/// sums of dq may be added in any order (Determinism::fast), those sums [S, H, T, D]; then what is
/// reserved for the library itself.
struct CudnnScratch {
  std::uint64_t dq_sums = 0, library = 0;  // where they begin, in bytes

  static CudnnScratch forward() { return {}; }
  static CudnnScratch backward(const AttentionBackward& op, Determinism determinism);
};

/// So many times run.library_workspace may be what a backward is given: in pieces, which are all
/// that fits otherwise, GPT-2 124M's in a fixed order took 2.5 times as long on an H200, and
/// Qwen2.5-1.5B's in any order 1.3 times.
inline constexpr std::uint64_t kBackwardReservations = 32;
/// Bytes for the library itself: run.library_workspace, and in a backward what its engine wants
/// within that limit: in a fixed order scores of all queries and keys in half width, and with
/// grouped queries dk and dv of all heads (tests/cudnn holds the library to it).
std::uint64_t cudnn_library_bytes(const KernelCtx& ctx, const AttentionForward& op);
std::uint64_t cudnn_library_bytes(const KernelCtx& ctx, const AttentionBackward& op);

}  // namespace llmtrain::kernels::cuda
