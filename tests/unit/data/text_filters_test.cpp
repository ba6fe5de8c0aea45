#include "lib/data/text_filters.hpp"

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

namespace llmtrain::data {

namespace {

std::string repeated(std::string_view part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

// A filter with a threshold, a document that just passes it and one that just does not.
struct Border {
  std::string_view filter;
  double threshold;
  std::string kept, dropped;
  double dropped_value;
};

std::vector<Border> borders() {
  const std::string e_acute = "\xC3\xA9";  // one character of two bytes
  const std::string ellipsis = "\xE2\x80\xA6";
  const std::string bullet = "\xE2\x80\xA2";
  return {
      {"min_characters", 5, repeated(e_acute, 5), repeated(e_acute, 4), 4},
      {"max_characters", 5, repeated(e_acute, 5), "abc\ndef", 7},
      {"min_words", 3, "a\tb\nc", " a  b ", 2},
      {"max_words", 3, "a b c", "a b c d", 4},
      {"min_mean_word_length", 2, "a " + e_acute + "bc", "a bc", 1.5},
      {"max_mean_word_length", 2, "a bcd", "a bcde", 2.5},
      {"min_alphabetic_word_share", 0.5, "1 a", "1 2 a", 1.0 / 3},
      {"min_alphabetic_word_share", 0.5, "1 " + e_acute, "-- a 7", 1.0 / 3},
      {"max_symbol_word_ratio", 0.5, "#a b", "#a #b c", 2.0 / 3},
      {"max_symbol_word_ratio", 0.5, "a... b", "a... b" + ellipsis + " c", 2.0 / 3},
      {"max_ellipsis_line_share", 0.5, "a\n\nb...  \n",
       "a\nb..."
       "\nc" +
           ellipsis,
       2.0 / 3},
      {"max_bullet_line_share", 0.5, "- a\n-b\n", "  - a\n* b\n\nc", 2.0 / 3},
      {"max_bullet_line_share", 0.5, "a\n" + bullet + " b", bullet + " b", 1},
      {"max_line_length", 4, "abcd\n  " + repeated(e_acute, 4) + "  ", "a\nabcde\n", 5},
      {"max_duplicate_line_share", 0.5, "a\nb\n a\n\n\n", "a\na\na\nb\na", 3.0 / 5},
      // "of the" twice: 2 x 5 of 16 characters, and three times: 3 x 5 of 21.
      {"max_top_bigram_share", 0.65, "of the one of the two", "of the one of the two of the",
       15.0 / 21},
      {"max_invalid_utf8_share", 0.001, repeated("abcdefghij", 100), "\xFF" + repeated("a", 499),
       0.002},
  };
}

std::size_t row_of(std::string_view name) {
  const auto table = text_filter_table();
  const auto row = std::find_if(table.begin(), table.end(),
                                [&](const TextFilter& filter) { return filter.name == name; });
  REQUIRE(row != table.end());
  return static_cast<std::size_t>(row - table.begin());
}

}  // namespace

TEST_CASE("each filter keeps a document on one side of its border and drops one on the other") {
  for (const Border& border : borders()) {
    CAPTURE(border.filter);
    const FilterThreshold on{row_of(border.filter), border.threshold};
    CHECK(!filter_text(border.kept, {&on, 1}));
    const auto verdict = filter_text(border.dropped, {&on, 1});
    REQUIRE(verdict);
    CHECK(verdict->filter == on.filter);
    CHECK(verdict->value == doctest::Approx(border.dropped_value).epsilon(1e-12));
    // The other way round a threshold keeps both, or the filter looks the wrong way.
    const FilterThreshold loose{row_of(border.filter),
                                text_filter_table()[row_of(border.filter)].is_minimum ? 0.0 : 1e12};
    CHECK(!filter_text(border.dropped, {&loose, 1}));
  }
  for (const TextFilter& filter : text_filter_table()) {
    const auto all = borders();
    CAPTURE(filter.name);
    CHECK(std::any_of(all.begin(), all.end(),
                      [&](const Border& border) { return border.filter == filter.name; }));
  }
}

TEST_CASE("the first filter that drops a text names it, and none drops without filters") {
  const std::vector<FilterThreshold> on{{row_of("min_characters"), 2}, {row_of("min_words"), 3}};
  CHECK(filter_text("a", on)->filter == row_of("min_characters"));
  CHECK(filter_text("a b", on)->filter == row_of("min_words"));
  CHECK(!filter_text("a b c", on));
  CHECK(!filter_text("", {}));
}

}  // namespace llmtrain::data
