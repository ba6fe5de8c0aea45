#pragma once
/// Sees every block that this process takes: malloc and its kin, mmap, thread stacks.

#include <cstddef>
#include <string>
#include <vector>

namespace llmtrain::memory_probe {

/// Blocks of 64 KiB or more count; smaller ones are bookkeeping.
inline constexpr std::size_t kLargeBlock = 64 << 10;

struct Block {
  std::string call;  // "malloc", "mmap", ...
  std::size_t bytes = 0;
  std::string callers;  // innermost first, without the allocator's own frames
};
/// "1048576 B by malloc from a() < b() < ...".
std::string to_string(const Block& block);

/// Starts an empty record of large blocks, from whichever thread.
void start_recording();
/// The large blocks since then, in order. Blocks beyond the first 512 are counted in one entry.
std::vector<Block> stop_recording();

}  // namespace llmtrain::memory_probe
