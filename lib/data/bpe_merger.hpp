#pragma once
/// The merge step of byte-pair encoding: the symbols of one piece of text to token ids.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace llmtrain::data {

/// Two neighbouring tokens and the token that replaces them.
struct Merge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t merged = 0;
};

/// Merges by rank, lowest first, leftmost among equals (Sennrich et al., 2016; identical to Hugging
/// Face's queue). Immutable.
class BpeMerger {
 public:
  /// A merge's rank is its place in `merges`; of merges of the same pair the last one counts.
  explicit BpeMerger(std::span<const Merge> merges);

  /// Memory of one thread.
  struct Scratch {
    std::vector<std::int32_t> symbols;
    std::vector<std::uint32_t> ranks;
    std::vector<std::size_t> next;
    std::vector<std::size_t> previous;
    std::vector<std::pair<std::uint32_t, std::size_t>> queue;  // (rank, position)
  };

  /// Merges `scratch.symbols` in place. O(n^2) for short pieces, O(n log n) for long ones.
  void merge(Scratch& scratch) const;

 private:
  static constexpr std::uint32_t kNoMerge = ~0u;

  std::uint32_t rank(std::int32_t left, std::int32_t right) const;
  void merge_by_scan(Scratch& scratch) const;
  void merge_by_queue(Scratch& scratch) const;

  struct Slot {
    std::uint64_t pair = ~0ull;
    std::uint32_t rank = kNoMerge;
  };
  std::vector<std::int32_t> merged_;  // by rank
  std::vector<Slot> slots_;           // open addressing, a power of two, at most half full
};

}  // namespace llmtrain::data
