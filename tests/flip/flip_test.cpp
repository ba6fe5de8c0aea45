// Every recipe key does something: each is flipped once, and what the table names must change.
#include <algorithm>
#include <regex>
#include <set>

#include <doctest/doctest.h>

#include "lib/base/require.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/train/recipe.hpp"
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using recipe::Entry;
using recipe::KeyInfo;

// The keys that can be flipped: all but mappings that are always there.
std::vector<KeyInfo> keys_of_schema(const recipe::Section& root) {
  std::vector<KeyInfo> keys = recipe::list_keys(root);
  std::erase_if(keys, [](const KeyInfo& key) { return key.kind == KeyInfo::Kind::section; });
  return keys;
}

std::string variant_of(const KeyInfo& key) {
  return fmt::format("{}", fmt::join(key.only_with, ", "));
}

bool belongs_to(const Flip& row, const KeyInfo& key) {
  return std::find(key.only_with.begin(), key.only_with.end(), row.with) != key.only_with.end();
}

// The rows that flip this key: those of its variant, or else the general ones.
std::vector<const Flip*> rows_of(const KeyInfo& key, std::span<const Flip> table) {
  std::vector<const Flip*> special, general;
  for (const Flip& row : table) {
    if (row.key != key.path) continue;
    if (row.with.empty()) general.push_back(&row);
    if (!row.with.empty() && belongs_to(row, key)) special.push_back(&row);
  }
  return special.empty() ? general : special;
}

// Keys without a row and rows without a key, one line each.
std::vector<std::string> mistakes_of(std::span<const KeyInfo> keys, std::span<const Flip> table) {
  std::vector<std::string> mistakes;
  std::set<const Flip*> used;
  for (const KeyInfo& key : keys) {
    const auto rows = rows_of(key, table);
    if (rows.empty())
      mistakes.push_back(fmt::format("{} ({}) has no row", key.path, variant_of(key)));
    used.insert(rows.begin(), rows.end());
  }
  for (const Flip& row : table) {
    if (!used.contains(&row)) {
      mistakes.push_back(fmt::format("{} ({}) is no key of the schema", row.key, row.with));
    }
  }
  return mistakes;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t bar = std::min(text.find(" | "), text.size());
    parts.emplace_back(text.substr(0, bar));
    text.remove_prefix(std::min(text.size(), bar + 3));
  }
  return parts;
}

// What selects the key's variant, then the row's base, then the flip.
std::vector<std::string> overrides_of(const KeyInfo& key, const Flip& row, std::string_view flip) {
  std::vector<std::string> all;
  for (const std::string& with : key.only_with) {
    all.push_back(
        fmt::format("{}={}", with.substr(0, with.find(':')), with.substr(with.find(':') + 2)));
  }
  for (const std::string_view part : {row.base, flip}) {
    for (std::string& text : split(part)) all.push_back(std::move(text));
  }
  return all;
}

// ---- The value of a key in a loaded recipe.

std::string value_in(const recipe::Section& section, std::string_view path);

std::string value_of(const Entry& entry, std::string_view rest) {
  switch (entry.kind()) {
    case Entry::Kind::value:
      return static_cast<const recipe::ValueEntry&>(entry).value_text();
    case Entry::Kind::choice: {
      const auto& choice = static_cast<const recipe::ChoiceEntry&>(entry);
      return std::string(choice.options()[choice.selected()].name);
    }
    case Entry::Kind::section: {
      const auto& sub = static_cast<const recipe::SectionEntry&>(entry);
      if (!rest.empty()) return value_in(sub.section(), rest);
      return sub.present() ? "present" : "null";
    }
    case Entry::Kind::list: {
      const auto& list = static_cast<const recipe::ListEntry&>(entry);
      if (rest.empty()) return std::to_string(list.size());
      REQUIRE(list.size() > 0);
      return value_in(list.at(0), rest.substr(2));  // behind "*."
    }
  }
  return {};
}

std::string value_in(const recipe::Section& section, std::string_view path) {
  const std::string_view name = path.substr(0, path.find('.'));
  const std::string_view rest =
      name.size() == path.size() ? std::string_view{} : path.substr(name.size() + 1);
  for (const Entry* entry : section.entries()) {
    if (entry->name() == name) return value_of(*entry, rest);
    if (entry->kind() != Entry::Kind::choice) continue;
    const auto* options = static_cast<const recipe::ChoiceEntry*>(entry)->section();
    if (options == nullptr) continue;
    if (std::string found = value_in(*options, path); !found.empty()) return found;
  }
  return {};
}

// The key's value after this setting of the row.
std::string value_after(const KeyInfo& key, const Flip& row, std::string_view flip) {
  const auto recipe = train::load_recipe(std::filesystem::path(Workshop::kRecipeFile),
                                         overrides_of(key, row, flip));
  return value_in(*recipe, key.path);
}

// The row's settings, the base first. Names that mean the same value count once.
std::vector<std::string> settings_of(const KeyInfo& key, const Flip& row) {
  std::vector<std::string> settings{""};
  settings.insert(settings.end(), row.flips.begin(), row.flips.end());
  if (!row.flips.empty()) return settings;
  std::set<std::string> values{value_after(key, row, "")};
  for (const std::string& name : key.allowed) {
    std::string flip = fmt::format("{}={}", key.path, name);
    if (values.insert(value_after(key, row, flip)).second) settings.push_back(std::move(flip));
  }
  CHECK(settings.size() > 1);
  return settings;
}

// The values that the row's settings give the key; all differ, or the row flips nothing.
std::vector<std::string> values_of(const KeyInfo& key, const Flip& row) {
  std::vector<std::string> values;
  for (const std::string& setting : settings_of(key, row)) {
    values.push_back(value_after(key, row, setting));
  }
  CHECK(std::set<std::string>(values.begin(), values.end()).size() == values.size());
  return values;
}

// Runs on a GPU, not only plans for one.
bool needs_gpu(const Flip& row) {
  const bool plans = row.sights == std::vector<Sight>{Sight::plan};
  return !plans && row.base.find("run.device=cuda") != row.base.npos;
}

void check_row(Workshop& workshop, const KeyInfo& key, const Flip& row) {
  if (needs_gpu(row) && !Workshop::has_gpu()) return;
  std::vector<Sight> sights = row.sights;
  const bool same = sights.empty();
  if (same) sights.assign(kAllSights.begin(), kAllSights.end());
  for (const Sight sight : sights) {
    std::vector<std::string> seen;
    for (const std::string& flip : settings_of(key, row)) {
      std::string now = workshop.see(sight, overrides_of(key, row, flip), row.after_a_run);
      const bool known = std::find(seen.begin(), seen.end(), now) != seen.end();
      if (!seen.empty() && known != same) {
        FAIL_CHECK(fmt::format("{} ({}): {} {} {}", key.path, variant_of(key), flip,
                               same ? "changes" : "does not change", to_string(sight)));
      }
      seen.push_back(std::move(now));
    }
  }
}

}  // namespace

TEST_CASE("every key of the schema has a row, and every row a key") {
  const train::Recipe schema;
  const std::vector<KeyInfo> keys = keys_of_schema(schema);

  const std::vector<std::string> mistakes = mistakes_of(keys, flip_table());
  CHECK(fmt::format("{}", fmt::join(mistakes, "\n")) == "");

  // Without a row, its key is named; with one too many, that row is.
  const auto table = flip_table();
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::vector<Flip> other(table.begin(), table.end());
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    other.push_back({"optimizer.no_such_key", {Sight::plan}, "", {"a=b"}});
    const std::string text = fmt::format("{}", fmt::join(mistakes_of(keys, other), "\n"));
    CHECK(text.find("optimizer.no_such_key () is no key") != std::string::npos);
    const bool has_another = std::count_if(table.begin(), table.end(), [&](const Flip& row) {
                               return row.key == table[i].key;
                             }) > 1;
    if (!has_another) CHECK(text.find(std::string(table[i].key) + " (") != std::string::npos);
  }
}

TEST_CASE("a wrong or missing value of any key is an issue at that key") {
  Workshop workshop;
  const train::Recipe schema;
  for (const KeyInfo& key : recipe::list_keys(schema)) {
    CAPTURE(key.path);
    std::string concrete = key.path;
    if (const std::size_t star = concrete.find('*'); star != std::string::npos)
      concrete[star] = '0';
    const auto rows = rows_of(key, flip_table());
    const Flip plain{key.path, {}, "", {}};
    const Flip& row = rows.empty() ? plain : *rows.front();
    const bool is_mapping =
        key.kind == KeyInfo::Kind::section || key.kind == KeyInfo::Kind::optional_section;
    std::vector<std::string> wrong{concrete + (is_mapping ? "=5" : "={no_key: 5}")};
    if (key.required) wrong.push_back("~" + concrete);
    for (const std::string& change : wrong) {
      CAPTURE(change);
      train::Recipe recipe;
      const std::vector<recipe::Issue> issues = recipe::check(
          recipe, {.file = Workshop::kRecipeFile, .overrides = overrides_of(key, row, change)});
      CHECK(std::any_of(issues.begin(), issues.end(), [&](const recipe::Issue& issue) {
        return issue.text().find(concrete) != std::string::npos;
      }));
    }
  }
}

TEST_CASE("a recipe does the same every time, so that a change is the key's") {
  std::vector<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    Workshop workshop;
    std::string all;
    for (const Sight sight : kAllSights) {
      const std::string text = workshop.see(sight, {"eval.sample_prompts=[word]"}, false);
      CAPTURE(to_string(sight));
      CHECK(!text.empty());
      all += text;
    }
    seen.push_back(all);
  }
  CHECK(seen[0] == seen[1]);
}

TEST_CASE("flipping any key changes what the table says") {
  Workshop workshop;
  const train::Recipe schema;
  for (const KeyInfo& key : keys_of_schema(schema)) {
    std::string values;
    for (const Flip* row : rows_of(key, flip_table())) {
      CAPTURE(key.path);
      values += fmt::format(" {} ", fmt::join(values_of(key, *row), " "));
      check_row(workshop, key, *row);
    }
    // Every name that the key may have is one of the settings, or another name of one.
    for (const std::string& name : key.allowed) {
      const std::string literally = std::regex_replace(name, std::regex("[+.]"), "\\$&");
      if (!std::regex_search(values, std::regex("[ \\[\"]" + literally + "[ ,\"\\]]")) &&
          values.find(" " + value_after(key, {key.path, {}}, key.path + "=" + name) + " ") ==
              std::string::npos) {
        FAIL_CHECK(fmt::format("{}: no row sets it to {}", key.path, name));
      }
    }
  }
}

}  // namespace llmtrain::test
