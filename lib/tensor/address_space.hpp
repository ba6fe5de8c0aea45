#pragma once
/// The allocator's arithmetic, without any memory: real and imaginary arenas share it.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace llmtrain {

/// Best-fit allocation of offsets in [0, capacity), coalescing. Offsets are fully determined by the
/// sequence of calls: they do not depend on the capacity, which only decides what does not fit.
/// Offsets and sizes are multiples of kAlignment.
class AddressSpace {
 public:
  static constexpr std::uint64_t kAlignment = 256;

  explicit AddressSpace(std::uint64_t capacity);

  /// Smallest gap between taken blocks that holds `bytes` (lowest offset among equals), or else the
  /// space above all of them; empty if neither holds it.
  std::optional<std::uint64_t> take(std::uint64_t bytes);
  /// Returns a block; `bytes` as given to `take`.
  void give_back(std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t capacity() const { return capacity_; }
  /// One past the highest byte ever taken.
  std::uint64_t extent() const { return extent_; }
  std::uint64_t largest_free_block() const;

  static constexpr std::uint64_t round_up(std::uint64_t bytes) {
    return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  void insert_gap(std::uint64_t offset, std::uint64_t bytes);
  void erase_gap(std::map<std::uint64_t, std::uint64_t>::iterator block);

  std::uint64_t capacity_;
  std::uint64_t top_ = 0;  // everything from here on is free
  std::uint64_t extent_ = 0;
  // Free blocks below top_; none of them touches it or another.
  std::map<std::uint64_t, std::uint64_t> by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

}  // namespace llmtrain
