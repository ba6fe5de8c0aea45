#pragma once
/// What kernels of experts and their routers ask for on a GPU.

#include "kernels/experts.hpp"
#include "kernels/router.hpp"

namespace llmtrain::kernels::cuda {

/// Choices that one block puts in order.
inline constexpr std::int64_t kChoicesOfChunk = 1024;

/// Of each chunk, how many choices each expert and nobody has.
constexpr std::uint64_t group_by_expert_bytes(std::int64_t choices, std::int64_t experts) {
  const std::int64_t chunks = (choices + kChoicesOfChunk - 1) / kChoicesOfChunk;
  return static_cast<std::uint64_t>(chunks * (experts + 1)) * sizeof(std::int32_t);
}

/// A row of a router keeps its scores in the memory of one multiprocessor.
inline constexpr std::int64_t kMaxRoutedExperts = 4096;

}  // namespace llmtrain::kernels::cuda
