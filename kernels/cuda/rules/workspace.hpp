#pragma once
/// What CUDA kernels ask for beside their operands. Part of the executable, so that a plan for a
/// GPU needs neither GPU nor plugin; the plugin's kernels are given exactly this.

#include <vector>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// The meta device that plans for a GPU.
const KernelTable& meta_cuda_table();

namespace cuda {

/// Values that one thread block joins to a sum; a power of 2, so that they are a subtree.
inline constexpr std::int64_t kJoinedValues = 1024;

/// A row for every kernel.
std::vector<WorkspaceRow> workspace_rows();

/// GELU's tanh form, which is the library's, in bf16 and fp16.
bool fuses_activation(Activation activation, DType dtype);

}  // namespace cuda

}  // namespace llmtrain::kernels
