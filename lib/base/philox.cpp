#include "lib/base/philox.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/base/hash.hpp"

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

namespace {

constexpr double kCentralA[8] = {
    2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
    13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
constexpr double kCentralB[8] = {
    5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
constexpr double kMiddleA[8] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                                0.24178072517745061177,   1.27045825245236838258,
                                3.64784832476320460504,   5.7694972214606914055,
                                4.6303378461565452959,    1.42343711074968357734};
constexpr double kMiddleB[8] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                0.0151986665636164571966,  0.14810397642748007459,
                                0.68976733498510000455,    1.6763848301838038494,
                                2.05319162663775882187,    1.0};
constexpr double kTailA[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                              0.0012426609473880784386,  0.026532189526576123093,
                              0.29656057182850489123,    1.7848265399172913358,
                              5.4637849111641143699,     6.6579046435011037772};
constexpr double kTailB[8] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                              1.8463183175100546818e-5,   7.868691311456132591e-4,
                              0.0148753612908506148525,   0.13692988092273580531,
                              0.59983220655588793769,     1.0};

// Ratio of two polynomials of degree 7, highest coefficient first.
[[gnu::always_inline]] inline double ratio(double x, const double (&a)[8], const double (&b)[8]) {
  double p = a[0];
  double q = b[0];
  for (int i = 1; i < 8; ++i) {
    p = p * x + a[i];
    q = q * x + b[i];
  }
  return p / q;
}

// The quantile's parts: of q = p - 0.5 where its size is at most kCentral, beyond of
// r = sqrt(-log(min(p, 1 - p))) up to kMiddle and from there on.
constexpr double kCentral = 0.425;
constexpr double kMiddle = 5.0;
[[gnu::always_inline]] inline double central(double q) {
  return q * ratio(0.180625 - q * q, kCentralA, kCentralB);
}
[[gnu::always_inline]] inline double middle(double r) { return ratio(r - 1.6, kMiddleA, kMiddleB); }
[[gnu::always_inline]] inline double tail(double r) { return ratio(r - 5.0, kTailA, kTailB); }

}  // namespace

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= kCentral) return central(q);
  const double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  const double x = r <= kMiddle ? middle(r) : tail(r);
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
  // Of those beyond kCentral: which they are, their -log(min(p, 1 - p)), then the values' sizes.
  std::size_t outer[kBlock];
  double sizes[kBlock];
};

// Loops without branches, which become vectors, around the logarithms, which have their bits one
// by one.
[[gnu::always_inline]] inline void set_values(Quantiles& b, const std::uint32_t* words,
                                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    b.q[i] = unit_interval(words[i]) - 0.5;
    b.values[i] = central(b.q[i]);  // even where it is not
  }
  for (std::size_t i = 0; i < count; ++i) b.is_outer[i] = std::abs(b.q[i]) > kCentral;
  std::size_t outer = 0;
  for (std::size_t i = 0; i < count; ++i) {
    b.outer[outer] = i;
    outer += b.is_outer[i];
  }
  // 0.5 - |q| is min(p, 1 - p) exactly, for p is a multiple of 2^-33; and as that is the least p,
  // no word comes to tail().
  for (std::size_t i = 0; i < outer; ++i) b.sizes[i] = -std::log(0.5 - std::abs(b.q[b.outer[i]]));
  for (std::size_t i = 0; i < outer; ++i) b.sizes[i] = middle(std::sqrt(b.sizes[i]));
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
