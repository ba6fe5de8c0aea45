// Arbitrary bytes as a recipe: issues, or values whose dump loads again to the same values. The
// input is, with a NUL byte between them: the recipe, the text of everything it includes, and
// overrides.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/require.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/train/recipe.hpp"

using namespace llmtrain;

namespace {

constexpr std::string_view kMain = "/nowhere/recipe";

std::vector<std::string> split(std::string_view input) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = input.find('\0');
    parts.emplace_back(input.substr(0, end));
    if (end == input.npos) return parts;
    input.remove_prefix(end + 1);
  }
}

// Both texts are built-in recipes, and a built-in recipe includes only such: no name reaches a
// file.
std::vector<recipe::Issue> check(train::Recipe& root, const std::string& text,
                                 const std::string& included,
                                 const std::vector<std::string>& overrides) {
  recipe::LoadRequest request;
  request.file = kMain;
  request.overrides = overrides;
  request.builtin = [&](std::string_view name) {
    return std::optional(name == kMain ? text : included);
  };
  request.reserved = train::reserved_keys();
  return recipe::check(root, request);
}

// The values alone, without where they came from.
void append_values(const recipe::Section& section, std::string& out) {
  for (const recipe::Entry* entry : section.entries()) {
    if (const auto* value = dynamic_cast<const recipe::ValueEntry*>(entry)) {
      out += fmt::format("{} = {}\n", value->path(), value->value_text());
    } else if (const auto* choice = dynamic_cast<const recipe::ChoiceEntry*>(entry)) {
      out += fmt::format("{} = {}\n", choice->path(), choice->options()[choice->selected()].name);
      if (choice->section() != nullptr) append_values(*choice->section(), out);
    } else if (const auto* sub = dynamic_cast<const recipe::SectionEntry*>(entry)) {
      out += fmt::format("{} {}\n", sub->path(), sub->present());
      if (sub->present()) append_values(sub->section(), out);
    } else if (const auto* list = dynamic_cast<const recipe::ListEntry*>(entry)) {
      out += fmt::format("{} has {}\n", list->path(), list->size());
      for (std::size_t i = 0; i < list->size(); ++i) append_values(list->at(i), out);
    }
  }
}

std::string values(const recipe::Section& root) {
  std::string out;
  append_values(root, out);
  return out;
}

void require_loads_again(const train::Recipe& root, recipe::DumpKeys keys) {
  const std::string text = recipe::dump(root, keys);
  train::Recipe again;
  const auto issues = check(again, text, {}, {});
  require(issues.empty(), "the dump has an issue: {}\n{}", issues.empty() ? "" : issues[0].problem,
          text);
  require(values(again) == values(root), "the dump has other values:\n{}", text);
  // The first dump names the positions of the input; from here on they are those of a dump.
  const std::string second = recipe::dump(again, keys);
  train::Recipe third;
  require(check(third, second, {}, {}).empty(), "the second dump has an issue");
  require(recipe::dump(third, keys) == second, "dumps differ:\n{}", second);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts = split({reinterpret_cast<const char*>(data), size});
  parts.resize(std::max<std::size_t>(parts.size(), 2));
  train::Recipe root;
  const auto issues = check(root, parts[0], parts[1], {parts.begin() + 2, parts.end()});
  for (const recipe::Issue& issue : issues) issue.text();
  if (!issues.empty()) return 0;
  require_loads_again(root, recipe::DumpKeys::all);
  require_loads_again(root, recipe::DumpKeys::minimal);
  return 0;
}
