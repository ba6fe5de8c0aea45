#include "lib/train/cleaning_section.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::train {

namespace {

constexpr std::uint32_t kShingleWords = 5, kShingleCharacters = 24;

data::NearDuplicateOptions near_options(const NearDuplicateSection& section) {
  const data::ShingleUnit unit = section.shingle_unit();
  const auto& size = section.shingle_size().value;
  const std::uint32_t fallback =
      unit == data::ShingleUnit::words ? kShingleWords : kShingleCharacters;
  return {.threshold = section.threshold(),
          .permutations = static_cast<std::uint32_t>(section.permutations().value),
          .shingles = {.unit = unit,
                       .size = size ? static_cast<std::uint32_t>(size->value) : fallback}};
}

}  // namespace

void DeduplicationSection::validate(recipe::Issues& issues) const {
  if (normalize() && !exact()) issues.add(normalize, "does nothing without exact", "exact: true");
}

FilterSection::FilterSection() {
  for (const data::TextFilter& filter : data::text_filter_table()) {
    thresholds.emplace_back(this, filter.name, std::nullopt, filter.doc,
                            recipe::between(0, filter.most));
  }
}

void FilterSection::validate(recipe::Issues& issues) const {
  const auto table = data::text_filter_table();
  const auto row_of = [&](std::string_view name) {
    return std::find_if(table.begin(), table.end(),
                        [&](const data::TextFilter& filter) { return filter.name == name; }) -
           table.begin();
  };
  for (const std::string_view what : {"characters", "words", "mean_word_length"}) {
    const auto& least = thresholds[static_cast<std::size_t>(row_of(fmt::format("min_{}", what)))];
    const auto& most = thresholds[static_cast<std::size_t>(row_of(fmt::format("max_{}", what)))];
    recipe::judge(issues, [&] {
      if (least() && most() && *least() > *most()) {
        issues.add(most, fmt::format("is below {} {}", least.name(), *least()),
                   "no document would stay");
      }
    });
  }
}

data::CleaningOptions CleaningSection::options() const {
  data::CleaningOptions options{.exact = deduplication.exact(),
                                .normalize = deduplication.normalize()};
  if (deduplication.near) options.near = near_options(deduplication.near);
  for (std::size_t row = 0; row < filters.thresholds.size(); ++row) {
    if (const auto threshold = filters.thresholds[row]()) {
      options.filters.push_back({row, *threshold});
    }
  }
  return options;
}

}  // namespace llmtrain::train
