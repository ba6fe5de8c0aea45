// Keys of data.cleaning.
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using enum Sight;

constexpr std::string_view kCopies = "data.sources=[{path: copies.jsonl}]";
constexpr std::string_view kExact =
    "data.sources=[{path: copies.jsonl}] | data.cleaning.deduplication.exact=true";
constexpr std::string_view kNear =
    "data.sources=[{path: copies.jsonl}] | data.cleaning.deduplication.near={threshold: 0.5}";

}  // namespace

std::span<const Flip> cleaning_flips() {
  static const std::vector<Flip> kRows{
      {"data.cleaning.deduplication.exact",
       {data, files},
       kCopies,
       {"data.cleaning.deduplication.exact=true"}},
      {"data.cleaning.deduplication.normalize",
       {data},
       kExact,
       {"data.cleaning.deduplication.normalize=true"}},
      {"data.cleaning.deduplication.near",
       {data},
       kCopies,
       {"data.cleaning.deduplication.near={threshold: 0.8}"}},
      {"data.cleaning.deduplication.near.threshold",
       {data},
       kNear,
       {"data.cleaning.deduplication.near.threshold=0.95",
        "data.cleaning.deduplication.near.threshold=0.2"}},
      {"data.cleaning.deduplication.near.permutations",
       {data},
       kNear,
       {"data.cleaning.deduplication.near.permutations=16"}},
      {"data.cleaning.deduplication.near.shingle_unit",
       {data},
       kNear,
       {"data.cleaning.deduplication.near.shingle_unit=characters"}},
      {"data.cleaning.deduplication.near.shingle_size",
       {data},
       kNear,
       {"data.cleaning.deduplication.near.shingle_size=1"}},
      {"data.cleaning.filters.min_characters",
       {data},
       kCopies,
       {"data.cleaning.filters.min_characters=40"}},
      {"data.cleaning.filters.max_characters",
       {data},
       kCopies,
       {"data.cleaning.filters.max_characters=600"}},
      {"data.cleaning.filters.min_words", {data}, kCopies, {"data.cleaning.filters.min_words=50"}},
      {"data.cleaning.filters.max_words", {data}, kCopies, {"data.cleaning.filters.max_words=100"}},
      {"data.cleaning.filters.min_mean_word_length",
       {data},
       kCopies,
       {"data.cleaning.filters.min_mean_word_length=3"}},
      {"data.cleaning.filters.max_mean_word_length",
       {data},
       kCopies,
       {"data.cleaning.filters.max_mean_word_length=12"}},
      {"data.cleaning.filters.min_alphabetic_word_share",
       {data},
       kCopies,
       {"data.cleaning.filters.min_alphabetic_word_share=0.8"}},
      {"data.cleaning.filters.max_symbol_word_ratio",
       {data},
       kCopies,
       {"data.cleaning.filters.max_symbol_word_ratio=0.1"}},
      {"data.cleaning.filters.max_ellipsis_line_share",
       {data},
       kCopies,
       {"data.cleaning.filters.max_ellipsis_line_share=0.3"}},
      {"data.cleaning.filters.max_bullet_line_share",
       {data},
       kCopies,
       {"data.cleaning.filters.max_bullet_line_share=0.9"}},
      {"data.cleaning.filters.max_line_length",
       {data},
       kCopies,
       {"data.cleaning.filters.max_line_length=800"}},
      {"data.cleaning.filters.max_duplicate_line_share",
       {data},
       kCopies,
       {"data.cleaning.filters.max_duplicate_line_share=0.3"}},
      {"data.cleaning.filters.max_top_bigram_share",
       {data},
       kCopies,
       {"data.cleaning.filters.max_top_bigram_share=0.2"}},
      {"data.cleaning.filters.max_invalid_utf8_share",
       {data},
       "data.sources=[{path: latin.txt, max_document_bytes: 1024}]",
       {"data.cleaning.filters.max_invalid_utf8_share=0"}},
  };
  return kRows;
}

}  // namespace llmtrain::test
