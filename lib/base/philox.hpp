#pragma once
/// Philox4x32-10, the counter-based generator behind everything random in the program.
///
/// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11. A value is a pure function
/// of (seed, purpose, name, step, element index): it does not depend on layout, thread or order.
/// Counter words 0-1 hold element index / 4 (lane = index mod 4), words 2-3 the step (0 for
/// initialisation, the epoch for shuffles).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace llmtrain {

using PhiloxWords = std::array<std::uint32_t, 4>;

/// Key of one random stream.
struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
  bool operator==(const PhiloxKey&) const = default;
};

/// One of a block's ten rounds.
constexpr PhiloxWords philox_round(PhiloxWords counter, PhiloxKey key) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
  const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
  return {
      static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.k0, static_cast<std::uint32_t>(p1),
      static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.k1, static_cast<std::uint32_t>(p0)};
}

/// Of the round behind the one with this key.
constexpr PhiloxKey next_round_key(PhiloxKey key) {
  return {key.k0 + 0x9E3779B9u, key.k1 + 0xBB67AE85u};
}

/// One block of ten rounds: four 32-bit words.
constexpr PhiloxWords philox4x32_10(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    counter = philox_round(counter, key);
    key = next_round_key(key);
  }
  return counter;
}

/// The four words that hold elements 4*(index/4) .. 4*(index/4)+3 of the stream at `step`.
constexpr PhiloxWords philox_block(PhiloxKey key, std::uint64_t step, std::uint64_t index) {
  const std::uint64_t block = index / 4;
  return philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)},
                       key);
}

/// One 32-bit word of the stream.
constexpr std::uint32_t philox_word(PhiloxKey key, std::uint64_t step, std::uint64_t index) {
  return philox_block(key, step, index)[index % 4];
}

/// philox_word() of the elements from `index` on.
void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t index,
                  std::span<std::uint32_t> words);

/// Key = XXH3-64 of (seed, purpose, name), e.g. (42, "init", "model.layers.0.mlp.up_proj.weight").
PhiloxKey philox_key(std::uint64_t seed, std::string_view purpose, std::string_view name);

/// Maps a word to (0, 1): (word + 0.5) / 2^32, exact in double.
constexpr double unit_interval(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

/// Standard normal quantile of p in (0, 1) in scalar double arithmetic, so that every device and
/// instruction set sees the same value (Wichura, algorithm AS 241, relative error about 1e-16).
double normal_quantile(double p);

/// normal_quantile(unit_interval(word)) of every word, to the bit, in a fraction of the time.
void normal_quantiles(std::span<const std::uint32_t> words, std::span<double> values);

/// Uniform integer in [0, bound) without modulo bias from two words of the stream.
std::uint64_t philox_below(PhiloxKey key, std::uint64_t step, std::uint64_t index,
                           std::uint64_t bound);

}  // namespace llmtrain
