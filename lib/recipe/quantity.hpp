#pragma once
/// Values with units, as types of keys.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace llmtrain::recipe {

/// A number of things: 64, 3_000, "2M", "64Ki".
struct Count {
  std::uint64_t value = 0;
  constexpr Count(std::uint64_t v = 0) : value(v) {}
  constexpr operator std::uint64_t() const { return value; }
};

/// A size in bytes: 4096, "16GiB", "512MB".
struct Bytes {
  std::uint64_t value = 0;
  constexpr Bytes(std::uint64_t v = 0) : value(v) {}
  constexpr operator std::uint64_t() const { return value; }
};

/// An amount of memory: "8GiB", or a share of one that the key names: 0.6.
struct SizeOrShare {
  std::optional<std::uint64_t> bytes;
  double share = 1;  ///< above 0, at most 1; without `bytes`

  static constexpr SizeOrShare size(std::uint64_t n) { return {n, 1}; }
  static constexpr SizeOrShare of_all(double share) { return {std::nullopt, share}; }
  bool operator==(const SizeOrShare&) const = default;
};

/// A time: 90 (seconds), "30min", "23h30m".
struct Duration {
  double seconds = 0;
  bool operator==(const Duration&) const = default;
};

/// A stretch of training: 2000 (steps), "1%" (of all steps), "2B tok" (tokens).
struct Span {
  enum class Unit { steps, percent, tokens };
  Unit unit = Unit::steps;
  double percent = 0;       ///< of Unit::percent, 0 to 100
  std::uint64_t count = 0;  ///< of the other units

  static constexpr Span steps(std::uint64_t n) { return {Unit::steps, 0, n}; }
  static constexpr Span percents(double p) { return {Unit::percent, p, 0}; }
  static constexpr Span tokens(std::uint64_t n) { return {Unit::tokens, 0, n}; }
  /// In optimizer steps: percents rounded to the nearest step, tokens rounded up to whole steps.
  /// `total_steps` is the length of the run, `tokens_per_step` must be positive for Unit::tokens.
  std::uint64_t in_steps(std::uint64_t total_steps, std::uint64_t tokens_per_step) const;
  bool operator==(const Span&) const = default;
};

/// How often something happens: 1000 (steps) or "30min".
struct Interval {
  enum class Unit { steps, seconds };
  Unit unit = Unit::steps;
  std::uint64_t count = 0;  ///< of Unit::steps
  double seconds = 0;       ///< of Unit::seconds

  static constexpr Interval every_steps(std::uint64_t n) { return {Unit::steps, n, 0}; }
  static constexpr Interval every_seconds(double s) { return {Unit::seconds, 0, s}; }
  bool operator==(const Interval&) const = default;
};

struct AutoWord {
  static constexpr std::string_view text = "auto";
};
struct DynamicWord {
  static constexpr std::string_view text = "dynamic";
};

/// A value, or a word: the program decides and says what it chose.
template <class T, class Word = AutoWord>
struct Auto {
  std::optional<T> value;  ///< empty = the word

  constexpr Auto() = default;
  constexpr Auto(T v) : value(std::move(v)) {}
  constexpr bool is_auto() const { return !value.has_value(); }
  bool operator==(const Auto&) const = default;
};
/// "dynamic": the program decides again and again.
template <class T>
using Dynamic = Auto<T, DynamicWord>;

}  // namespace llmtrain::recipe
