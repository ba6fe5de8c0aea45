#pragma once
/// Copies of large blocks of the host's memory.

#include <cstddef>
#include <span>
#include <vector>

namespace llmtrain::kernels {

/// Blocks of the same size that do not overlap.
struct MemoryCopy {
  std::span<std::byte> to;
  std::span<const std::byte> from;
};

/// `copies`, cut into blocks of 1 MiB at most, which threads can share.
std::vector<MemoryCopy> in_blocks(std::span<const MemoryCopy> copies);

/// What is written goes past the caches, so that a line need not be read before it is written and
/// what they hold stays there.
void copy_past_caches(const MemoryCopy& copy);

}  // namespace llmtrain::kernels
