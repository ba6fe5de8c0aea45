#include <algorithm>

#include <fmt/format.h>

#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t bar = text.find(" | ");
    parts.emplace_back(text.substr(0, bar));
    text = bar == std::string_view::npos ? "" : text.substr(bar + 3);
  }
  return parts;
}

}  // namespace

const ProbeModel& model_of(const Layout& layout) {
  const auto& models = probe_models();
  return *std::find_if(models.begin(), models.end(),
                       [&](const ProbeModel& model) { return model.name == layout.model; });
}

std::vector<std::string> overrides_of(const Layout& layout, bool ranks) {
  std::vector<std::string> overrides = split(layout.overrides);
  if (!ranks) return overrides;
  for (std::string& key : split(layout.parallelism)) overrides.push_back(std::move(key));
  return overrides;
}

std::vector<std::string> arguments_of(const Layout& layout, bool ranks) {
  std::vector<std::string> arguments = overrides_of(layout, ranks);
  if (layout.one_word) arguments.emplace_back("one_word");
  if (ranks) arguments.emplace_back("textbook");
  return arguments;
}

std::string title_of(const Layout& layout) {
  return fmt::format("{} ranks, {}, {} {}{}", layout.ranks, layout.model, layout.parallelism,
                     layout.overrides, layout.one_word ? " | one_word" : "");
}

}  // namespace llmtrain::test
