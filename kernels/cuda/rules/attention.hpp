#pragma once
/// Which kernel computes an attention on a GPU, and what lies in its workspace.

#include <string_view>

#include "kernels/attention.hpp"

namespace llmtrain::kernels::cuda {

enum class AttentionKernel : std::uint8_t {
  plain,      // products on the cores' own units, in the type of scores
  tensor_64,  // bf16 on tensor cores; the number is what head_dim is padded to
  tensor_96,
  tensor_128,
  tensor_256,
};
std::string_view to_string(AttentionKernel kernel);

/// The head_dim above which no kernel goes.
inline constexpr std::int64_t kMaxHeadDim = 256;

/// A pure function of the problem: bf16 whose heads are whole chunks of 16 bytes, at most 256
/// elements, goes to tensor cores. `aligned` says that all rows of all matrices begin at multiples
/// of 16 bytes.
AttentionKernel attention_rule(const AttentionShape& shape, DType dtype, bool aligned);

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

}  // namespace llmtrain::kernels::cuda
