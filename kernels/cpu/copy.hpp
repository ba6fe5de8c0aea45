#pragma once
/// Copies of large blocks of the host's memory.

#include <cstddef>
#include <span>

namespace llmtrain::kernels {

/// Blocks of the same size that do not overlap.
struct MemoryCopy {
  std::span<std::byte> to;
  std::span<const std::byte> from;
};

/// Makes all copies, divided among `threads` by bytes. What is written goes past the caches, so
/// that a line need not be read before it is written and what they hold stays there.
void copy_past_caches(std::span<const MemoryCopy> copies, int threads);

}  // namespace llmtrain::kernels
