#include "lib/base/philox.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/base/hash.hpp"
#include "lib/base/plain_normal.hpp"

namespace llmtrain {

PhiloxKey philox_key(std::uint64_t seed, std::string_view purpose, std::string_view name) {
  Hasher128 hasher;
  hasher.update_value(seed);
  hasher.update(purpose);
  hasher.update(std::string_view("\0", 1));
  hasher.update(name);
  const std::uint64_t h = hasher.digest().low;
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= kCentralQuantile) return central_quantile(q);
  const double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  const double x = r <= kMiddleQuantile ? middle_quantile(r) : tail_quantile(r);
  return q < 0 ? -x : x;
}

namespace {

// Words or values that are made at a time.
constexpr std::size_t kBlock = 512;

// Four words of a counter each, one array a word.
struct Counters {
  std::uint32_t word[4][kBlock / 4];
};

void ten_rounds(Counters& c, std::size_t count, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const PhiloxWords w =
          philox_round({c.word[0][i], c.word[1][i], c.word[2][i], c.word[3][i]}, key);
      c.word[0][i] = w[0];
      c.word[1][i] = w[1];
      c.word[2][i] = w[2];
      c.word[3][i] = w[3];
    }
    key = next_round_key(key);
  }
}

struct Quantiles {
  double q[kBlock], values[kBlock];
  std::uint8_t is_outer[kBlock];
  // Of those beyond kCentralQuantile: which they are, their -log(min(p, 1 - p)), then the values'
  // sizes.
  std::size_t outer[kBlock];
  double sizes[kBlock];
};

// Loops without branches, which become vectors, around the logarithms, which have their bits one
// by one.
[[gnu::always_inline]] inline void set_values(Quantiles& b, const std::uint32_t* words,
                                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    b.q[i] = unit_interval(words[i]) - 0.5;
    b.values[i] = central_quantile(b.q[i]);  // even where it is not
  }
  for (std::size_t i = 0; i < count; ++i) b.is_outer[i] = std::abs(b.q[i]) > kCentralQuantile;
  std::size_t outer = 0;
  for (std::size_t i = 0; i < count; ++i) {
    b.outer[outer] = i;
    outer += b.is_outer[i];
  }
  // 0.5 - |q| is min(p, 1 - p) exactly, for p is a multiple of 2^-33; and as that is the least p,
  // no word comes to tail_quantile().
  for (std::size_t i = 0; i < outer; ++i) b.sizes[i] = -std::log(0.5 - std::abs(b.q[b.outer[i]]));
  for (std::size_t i = 0; i < outer; ++i) b.sizes[i] = middle_quantile(std::sqrt(b.sizes[i]));
  for (std::size_t i = 0; i < outer; ++i) {
    b.values[b.outer[i]] = std::copysign(b.sizes[i], b.q[b.outer[i]]);
  }
}

using SetValues = void (*)(Quantiles& b, const std::uint32_t* words, std::size_t count);

void set_values_plainly(Quantiles& b, const std::uint32_t* words, std::size_t count) {
  set_values(b, words, count);
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] void set_values_avx2(Quantiles& b, const std::uint32_t* words,
                                             std::size_t count) {
  set_values(b, words, count);
}
#endif

// Whose bits are the same: nothing is contracted.
SetValues set_values_here() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return set_values_avx2;
#endif
  return set_values_plainly;
}

}  // namespace

void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t index,
                  std::span<std::uint32_t> words) {
  Counters c;
  std::uint32_t block[kBlock];
  for (std::size_t done = 0; done < words.size();) {
    const std::uint64_t first = (index + done) / 4;
    const std::size_t skipped = (index + done) % 4;
    const std::size_t count = std::min(kBlock - skipped, words.size() - done);
    const std::size_t counters = (skipped + count + 3) / 4;
    for (std::size_t i = 0; i < counters; ++i) {
      c.word[0][i] = static_cast<std::uint32_t>(first + i);
      c.word[1][i] = static_cast<std::uint32_t>((first + i) >> 32);
      c.word[2][i] = static_cast<std::uint32_t>(step);
      c.word[3][i] = static_cast<std::uint32_t>(step >> 32);
    }
    ten_rounds(c, counters, key);
    for (std::size_t i = 0; i < counters; ++i) {
      block[4 * i] = c.word[0][i];
      block[4 * i + 1] = c.word[1][i];
      block[4 * i + 2] = c.word[2][i];
      block[4 * i + 3] = c.word[3][i];
    }
    std::copy_n(block + skipped, count, words.data() + done);
    done += count;
  }
}

void normal_quantiles(std::span<const std::uint32_t> words, std::span<double> values) {
  static const SetValues set = set_values_here();
  Quantiles block;
  for (std::size_t done = 0; done < words.size(); done += kBlock) {
    const std::size_t count = std::min(kBlock, words.size() - done);
    set(block, words.data() + done, count);
    std::copy_n(block.values, count, values.data() + done);
  }
}

std::uint64_t philox_below(PhiloxKey key, std::uint64_t step, std::uint64_t index,
                           std::uint64_t bound) {
  const PhiloxWords w = philox_block(key, step, index * 4);
  const std::uint64_t word = (std::uint64_t{w[1]} << 32) | w[0];
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{word} * bound) >> 64);
}

}  // namespace llmtrain
