#pragma once
/// Seekable permutation: a bijection of [0, size) that is a pure function of its key.

#include <cstdint>

#include "lib/base/philox.hpp"

namespace llmtrain::data {

/// A balanced Feistel network whose rounds are Philox4x32-10, over the smallest domain of an even
/// number of bits that holds `size`, walked along its cycle until the value is below `size`
/// (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). O(1) memory; the domain has
/// fewer than 4 * size elements, so a look-up takes four walks at most on average.
class Permutation {
 public:
  /// `stream` separates permutations of one key, e.g. the epoch. size >= 1.
  Permutation(PhiloxKey key, std::uint64_t stream, std::uint64_t size);

  std::uint64_t size() const { return size_; }
  /// Where `index` (below size) goes.
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  PhiloxKey key_;
  std::uint64_t stream_;
  std::uint64_t size_;
  int half_bits_;
};

}  // namespace llmtrain::data
