#pragma once
/// One launch of every kernel of a training step, at any size. The list must hold all kernels that
/// a plan can record: what is missing here cannot be predicted.

#include <span>

#include "lib/plan/kernel_bench.hpp"

namespace llmtrain::plan {

/// Launches a kernel whose time goes with the bytes that it moves on `rows` rows.
struct RowCase {
  std::string_view what;
  /// Largest operand, in bytes per row and byte of the element type: how far `rows` may go.
  std::int64_t cols;
  bool fp32_only;
  LaunchTime (*launch)(KernelBench& bench, DType dtype, std::int64_t rows);
};
std::span<const RowCase> row_cases();
/// Those of routers and experts, of factored optimizers, of those in subspaces, of optimizers with
/// states of blocks, and of quantizers, which the others end with.
std::span<const RowCase> expert_row_cases();
std::span<const RowCase> factored_row_cases();
std::span<const RowCase> projected_row_cases();
std::span<const RowCase> block_row_cases();
std::span<const RowCase> quantize_row_cases();

/// The three products of a linear layer: 0 forward, 1 input gradient, 2 weight gradient.
inline constexpr int kNumForms = 3;
LaunchTime launch_matmul(KernelBench& bench, DType dtype, int form, std::int64_t m, std::int64_t n,
                         std::int64_t k);

/// Causal attention over one document per sequence; `heads` of all sequences together.
LaunchTime launch_attention(KernelBench& bench, DType dtype, bool backward, std::int64_t heads,
                            std::int64_t rows, std::int64_t head_dim);

}  // namespace llmtrain::plan
