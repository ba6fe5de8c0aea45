#pragma once
/// `data.cleaning` of the recipe.

#include <deque>
#include <optional>

#include "lib/data/cleaning.hpp"
#include "lib/data/similarity_sketch.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::train {

struct NearDuplicateSection : recipe::Section {
  recipe::Key<double> threshold{
      this, "threshold", 0.8,
      "Jaccard similarity of the sets of shingles from which on documents are near duplicates; "
      "estimated, see permutations",
      recipe::between(0.1, 1)};
  recipe::Key<recipe::Count> permutations{
      this, "permutations", 128,
      "entries of a document's sketch, 4 bytes each: the estimate has a standard error of "
      "sqrt(J (1 - J) / permutations), and counts from two of them below the threshold on",
      recipe::between(16, data::kMaxSketchEntries)};
  recipe::Key<data::ShingleUnit> shingle_unit{
      this, "shingle_unit", data::ShingleUnit::words,
      "what documents are compared by: runs of words (prose and code), or of characters (languages "
      "without spaces)",
      recipe::one_of<data::ShingleUnit>(
          {{"words", data::ShingleUnit::words}, {"characters", data::ShingleUnit::characters}})};
  recipe::Key<recipe::Auto<recipe::Count>> shingle_size{
      this,
      "shingle_size",
      {},
      "words or characters of a shingle; auto = 5 words, 24 characters",
      recipe::between(1, 1024)};
};

struct DeduplicationSection : recipe::Section {
  recipe::Key<bool> exact{this, "exact", false,
                          "drop training documents whose text equals that of an earlier one, or of "
                          "a held-out one (XXH3-128)"};
  recipe::Key<bool> normalize{
      this, "normalize", false,
      "exact: case of ASCII letters and amount of white space do not count"};
  recipe::OptionalSub<NearDuplicateSection> near{
      this, "near",
      "drop training documents that resemble one that stays, or a held-out one (MinHash); null = "
      "not"};
  void validate(recipe::Issues& issues) const override;
};

/// A key for each row of data::text_filter_table().
struct FilterSection : recipe::Section {
  FilterSection();
  std::deque<recipe::Key<std::optional<double>>> thresholds;  ///< in the order of the table
  void validate(recipe::Issues& issues) const override;
};

struct CleaningSection : recipe::Section {
  recipe::Sub<DeduplicationSection> deduplication{this, "deduplication",
                                                  "documents that are there more than once"};
  recipe::Sub<FilterSection> filters{
      this, "filters",
      "training documents to drop, by the first filter of this order that does not pass"};
  data::CleaningOptions options() const;
};

}  // namespace llmtrain::train
