#include "lib/data/text_filters.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

constexpr double kAny = 1e12;
constexpr auto kWords = static_cast<unsigned>(Statistic::words);
constexpr auto kLines = static_cast<unsigned>(Statistic::lines);
constexpr auto kDuplicateLines = static_cast<unsigned>(Statistic::duplicate_lines);
constexpr auto kBigrams = static_cast<unsigned>(Statistic::bigrams);
constexpr auto kInvalidBytes = static_cast<unsigned>(Statistic::invalid_bytes);

double real(std::uint64_t count) { return static_cast<double>(count); }

/// 0 where there is nothing to have a share of.
double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : real(part) / real(whole);
}

using Stats = const TextStatistics&;

constexpr std::array kTable{
    TextFilter{"min_characters", "drop documents with fewer characters; a web page: 200", true,
               kAny, kWords, [](Stats s) { return real(s.characters); }},
    TextFilter{"max_characters", "drop documents with more characters", false, kAny, kWords,
               [](Stats s) { return real(s.characters); }},
    TextFilter{"min_words", "drop documents with fewer words between white space; Gopher: 50", true,
               kAny, kWords, [](Stats s) { return real(s.words); }},
    TextFilter{"max_words", "drop documents with more words; Gopher: 100000", false, kAny, kWords,
               [](Stats s) { return real(s.words); }},
    TextFilter{"min_mean_word_length",
               "drop documents with fewer characters per word, such as broken tables; Gopher: 3",
               true, kAny, kWords, [](Stats s) { return share(s.word_characters, s.words); }},
    TextFilter{"max_mean_word_length",
               "drop documents with more characters per word, such as encoded data; Gopher: 10",
               false, kAny, kWords, [](Stats s) { return share(s.word_characters, s.words); }},
    TextFilter{"min_alphabetic_word_share",
               "drop documents with a smaller share of words that have a letter; Gopher: 0.8", true,
               1, kWords, [](Stats s) { return share(s.alphabetic_words, s.words); }},
    TextFilter{"max_symbol_word_ratio",
               "drop documents with more # or more ellipses per word; Gopher: 0.1", false, kAny,
               kWords, [](Stats s) { return share(std::max(s.hashes, s.ellipses), s.words); }},
    TextFilter{"max_ellipsis_line_share",
               "drop documents with a larger share of lines that end with an ellipsis; Gopher: 0.3",
               false, 1, kLines, [](Stats s) { return share(s.ellipsis_lines, s.lines); }},
    TextFilter{"max_bullet_line_share",
               "drop documents with a larger share of lines that begin with a bullet; Gopher: 0.9",
               false, 1, kLines, [](Stats s) { return share(s.bullet_lines, s.lines); }},
    TextFilter{
        "max_line_length",
        "drop documents with a longer line, in characters, such as minified code; Codex: 1000",
        false, kAny, kLines, [](Stats s) { return real(s.longest_line); }},
    TextFilter{"max_duplicate_line_share",
               "drop documents with a larger share of lines that equal an earlier one; Gopher: 0.3",
               false, 1, kDuplicateLines,
               [](Stats s) { return share(s.duplicate_lines, s.lines); }},
    TextFilter{
        "max_top_bigram_share",
        "drop documents where the pair of words that takes the most room is a larger share "
        "of the characters; Gopher: 0.2",
        false, 1, kBigrams,
        [](Stats s) { return std::min(1.0, share(s.top_bigram_characters, s.word_characters)); }},
    TextFilter{
        "max_invalid_utf8_share",
        "drop documents with a larger share of bytes that are no UTF-8 (above 0.01 a file is "
        "refused anyway)",
        false, 0.01, kInvalidBytes, [](Stats s) { return share(s.invalid_bytes, s.bytes); }},
};

}  // namespace

std::span<const TextFilter> text_filter_table() { return kTable; }

std::optional<FilterVerdict> filter_text(std::string_view text,
                                         std::span<const FilterThreshold> filters) {
  unsigned groups = 0;
  for (const FilterThreshold& on : filters) groups |= kTable.at(on.filter).needs;
  const TextStatistics statistics = measure_text(text, groups);
  for (const FilterThreshold& on : filters) {
    const TextFilter& filter = kTable[on.filter];
    const double value = filter.value(statistics);
    if (filter.is_minimum ? value < on.threshold : value > on.threshold) {
      return FilterVerdict{on.filter, value};
    }
  }
  return std::nullopt;
}

}  // namespace llmtrain::data
