#include "lib/data/permutation.hpp"

#include <algorithm>
#include <bit>

#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

// Three Feistel rounds with pseudorandom functions give a pseudorandom permutation, four a strong
// one (Luby and Rackoff, 1988); more only for small domains, where those bounds say little.
constexpr std::uint64_t kRounds = 8;

}  // namespace

Permutation::Permutation(PhiloxKey key, std::uint64_t stream, std::uint64_t size)
    : key_(key), stream_(stream), size_(size) {
  require(size >= 1 && size <= (std::uint64_t{1} << 62), "permutation of {} elements", size);
  half_bits_ = std::max(1, static_cast<int>(std::bit_width(size - 1) + 1) / 2);
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  require(index < size_, "element {} of a permutation of {}", index, size_);
  std::uint64_t value = index;
  do {
    value = encrypt(value);
  } while (value >= size_);
  return value;
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    // A word of the stream at element (round, right): right has at most 31 bits.
    const std::uint64_t f = philox_word(key_, stream_, ((round << 32) | right) * 4);
    const std::uint64_t next = left ^ (f & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

}  // namespace llmtrain::data
