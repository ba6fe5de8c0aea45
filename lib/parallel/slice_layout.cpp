#include "lib/parallel/slice_layout.hpp"

#include <fmt/format.h>

namespace llmtrain::parallel {

std::string message_site(std::string_view first, std::size_t tensors) {
  return fmt::format("{} and {} more", first, tensors - 1);
}

SliceLayout::SliceLayout(std::span<const Parameter* const> parameters, int owners, int own)
    : site(message_site(parameters.front()->name(), parameters.size())) {
  std::vector<std::int64_t> first(parameters.size(), 0);  // of the owner's slice of each
  for (int owner = 0; owner < owners; ++owner) {
    const std::int64_t begin = elements;
    if (owner == own) own_begin = begin;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::int64_t count = parameters[i]->slice_counts()[static_cast<std::size_t>(owner)];
      if (count == 0) continue;
      places.push_back({parameters[i], owner, {.first = first[i], .count = count}, elements});
      first[i] += count;
      elements += count;
    }
    counts.push_back(elements - begin);
  }
  own_count = counts[static_cast<std::size_t>(own)];
}

}  // namespace llmtrain::parallel
