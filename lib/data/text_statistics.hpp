#pragma once
/// What filters of documents measure in a text.

#include <cstdint>
#include <string_view>

namespace llmtrain::data {

/// Groups of statistics, so that only what is asked for is computed.
enum class Statistic : std::uint8_t {
  words = 1,  ///< characters, words, symbols
  lines = 2,  ///< lines, ellipses, bullets, longest line
  duplicate_lines = 4,
  bigrams = 8,
  invalid_bytes = 16,
};

/// Words are runs without ASCII white space, characters are code points; lines are stripped of
/// ASCII white space around them, and those without anything else do not count.
struct TextStatistics {
  std::uint64_t bytes = 0;
  std::uint64_t characters = 0;
  std::uint64_t words = 0;
  std::uint64_t word_characters = 0;
  std::uint64_t alphabetic_words =
      0;                       ///< with a letter, as which every character beyond ASCII counts
  std::uint64_t hashes = 0;    ///< '#'
  std::uint64_t ellipses = 0;  ///< "..." or U+2026
  std::uint64_t lines = 0;
  std::uint64_t ellipsis_lines = 0;   ///< end with an ellipsis
  std::uint64_t bullet_lines = 0;     ///< begin with - * or U+2022 2023 25E6 25AA and white space
  std::uint64_t longest_line = 0;     ///< characters
  std::uint64_t duplicate_lines = 0;  ///< equal an earlier line
  /// Largest product of how often a pair of neighbouring words occurs, at least twice, and its
  /// characters.
  std::uint64_t top_bigram_characters = 0;
  std::uint64_t invalid_bytes = 0;  ///< that belong to no UTF-8 character
};

/// `groups`: sum of `Statistic`s; members of other groups may stay 0.
TextStatistics measure_text(std::string_view text, unsigned groups);

}  // namespace llmtrain::data
