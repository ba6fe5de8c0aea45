#include "lib/recipe/keys.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lib/recipe/yaml_reader.hpp"

namespace llmtrain::recipe {

namespace {

KeyInfo common_info(const Entry& entry, KeyInfo::Kind kind,
                    const std::vector<std::string>& only_with) {
  KeyInfo info;
  info.kind = kind;
  info.path = entry.path();
  info.doc = entry.doc();
  info.only_with = only_with;
  info.entry = &entry;
  return info;
}

KeyInfo value_info(const ValueEntry& entry, const std::vector<std::string>& only_with) {
  KeyInfo info = common_info(entry, KeyInfo::Kind::value, only_with);
  const TypeInfo type = entry.type();
  info.type = type.text();
  info.default_text = entry.default_text();
  info.range = range_text(type.rule);
  info.unit = type.rule.unit;
  info.allowed = type.rule.allowed;
  info.required = entry.required();
  return info;
}

KeyInfo choice_info(const ChoiceEntry& entry, const std::vector<std::string>& only_with) {
  KeyInfo info = common_info(entry, KeyInfo::Kind::choice, only_with);
  info.type = "choice";
  info.default_text = entry.fallback();
  info.required = entry.required();
  for (const auto& option : entry.options()) info.allowed.emplace_back(option.name);
  return info;
}

void list_section(const Section& section, const std::vector<std::string>& only_with,
                  std::vector<KeyInfo>& keys);

void list_choice(const ChoiceEntry& entry, const std::vector<std::string>& only_with,
                 std::vector<KeyInfo>& keys) {
  keys.push_back(choice_info(entry, only_with));
  for (const auto& option : entry.options()) {
    if (!option.section) continue;
    std::vector<std::string> with = only_with;
    with.push_back(fmt::format("{}: {}", entry.path(), option.name));
    list_section(*option.section, with, keys);
  }
}

void list_section(const Section& section, const std::vector<std::string>& only_with,
                  std::vector<KeyInfo>& keys) {
  for (const Entry* entry : section.entries()) {
    switch (entry->kind()) {
      case Entry::Kind::value:
        keys.push_back(value_info(static_cast<const ValueEntry&>(*entry), only_with));
        break;
      case Entry::Kind::choice:
        list_choice(static_cast<const ChoiceEntry&>(*entry), only_with, keys);
        break;
      case Entry::Kind::section: {
        const auto& sub = static_cast<const SectionEntry&>(*entry);
        KeyInfo info = common_info(
            sub, sub.optional() ? KeyInfo::Kind::optional_section : KeyInfo::Kind::section,
            only_with);
        info.type = sub.optional() ? "section or null" : "section";
        if (sub.optional()) info.default_text = "null";
        keys.push_back(std::move(info));
        list_section(sub.section(), only_with, keys);
        break;
      }
      case Entry::Kind::list: {
        const auto& list = static_cast<const ListEntry&>(*entry);
        KeyInfo info = common_info(list, KeyInfo::Kind::list, only_with);
        info.type = "list of sections";
        info.default_text = "[]";
        keys.push_back(std::move(info));
        list_section(list.prototype(), only_with, keys);
        break;
      }
    }
  }
}

// "data.sources.3.path" -> "data.sources.*.path".
std::string with_stars(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += index ? "*" : part;
    path.remove_prefix(part.size());
    if (path.starts_with('.')) {
      out += '.';
      path.remove_prefix(1);
    }
  }
  return out;
}

std::string traits_text(const KeyInfo& key) {
  std::string text = key.type;
  if (!key.unit.empty()) text += " of " + key.unit;
  text += key.required ? ", required" : "";
  if (!key.default_text.empty()) text += ", default " + key.default_text;
  return text;
}

std::string describe_key(const KeyInfo& key) {
  std::string text = fmt::format("{} ({})\n  {}\n", key.path, traits_text(key), key.doc);
  if (!key.range.empty()) text += fmt::format("  range: {}\n", key.range);
  if (key.kind == KeyInfo::Kind::choice) {
    for (const auto& option : static_cast<const ChoiceEntry&>(*key.entry).options()) {
      text += fmt::format("    {:<16} {}\n", option.name, option.doc);
    }
  } else if (!key.allowed.empty()) {
    text += fmt::format("  allowed: {}\n", fmt::join(key.allowed, ", "));
  }
  if (!key.only_with.empty()) {
    text += fmt::format("  only with {}\n", fmt::join(key.only_with, " and "));
  }
  return text;
}

void list_unread(const Section& section, std::vector<std::string>& unread) {
  for (const Entry* entry : section.entries()) {
    const bool plain_section = entry->kind() == Entry::Kind::section &&
                               !static_cast<const SectionEntry&>(*entry).optional();
    if (!plain_section && !entry->was_read()) {
      unread.push_back(entry->path());
      // Who did not ask whether there are elements did not read them either.
      if (entry->kind() != Entry::Kind::choice) continue;
    }
    if (const auto* choice = dynamic_cast<const ChoiceEntry*>(entry)) {
      if (choice->section() != nullptr) list_unread(*choice->section(), unread);
    } else if (const auto* sub = dynamic_cast<const SectionEntry*>(entry)) {
      if (sub->present()) list_unread(sub->section(), unread);
    } else if (const auto* list = dynamic_cast<const ListEntry*>(entry)) {
      for (std::size_t i = 0; i < list->size(); ++i) list_unread(list->at(i), unread);
    }
  }
}

// Path and YAML text of every key that has a value: rows and sections that are not there have none.
using PathValue = std::pair<std::string, std::string>;

void list_values(const Section& section, std::vector<PathValue>& values) {
  for (const Entry* entry : section.entries()) {
    if (const auto* key = dynamic_cast<const ValueEntry*>(entry)) {
      values.emplace_back(key->path(), key->value_text());
    } else if (const auto* choice = dynamic_cast<const ChoiceEntry*>(entry)) {
      values.emplace_back(choice->path(), choice->options()[choice->selected()].name);
      if (choice->section() != nullptr) list_values(*choice->section(), values);
    } else if (const auto* sub = dynamic_cast<const SectionEntry*>(entry)) {
      if (sub->present()) list_values(sub->section(), values);
    } else if (const auto* list = dynamic_cast<const ListEntry*>(entry)) {
      for (std::size_t i = 0; i < list->size(); ++i) list_values(list->at(i), values);
    }
  }
}

}  // namespace

std::vector<KeyInfo> list_keys(const Section& root) {
  std::vector<KeyInfo> keys;
  list_section(root, {}, keys);
  return keys;
}

std::vector<KeyInfo> find_keys(const Section& root, std::string_view path) {
  const std::string wanted = with_stars(path);
  std::vector<KeyInfo> keys = list_keys(root);
  std::erase_if(keys, [&](const KeyInfo& key) { return key.path != wanted; });
  return keys;
}

std::optional<std::string> help(const Section& root, std::string_view path) {
  std::string text;
  for (const KeyInfo& key : find_keys(root, path)) text += describe_key(key);
  if (text.empty() && !path.empty()) return std::nullopt;
  const std::string prefix = path.empty() ? "" : with_stars(path) + ".";
  for (const KeyInfo& key : list_keys(root)) {
    if (!key.path.starts_with(prefix)) continue;
    const bool alone = key.only_with.empty();
    text +=
        fmt::format("  {:<32} {} ({}{}{})\n", key.path.substr(prefix.size()), key.doc,
                    traits_text(key), alone ? "" : "; with ", alone ? "" : key.only_with.back());
  }
  return text;
}

std::vector<std::string> unread_keys(const Section& root) {
  std::vector<std::string> unread;
  list_unread(root, unread);
  return unread;
}

std::vector<std::string> changed_values(const Section& before, const Section& after) {
  std::vector<PathValue> old_values, new_values;
  list_values(before, old_values);
  list_values(after, new_values);
  std::map<std::string, std::string> gone(old_values.begin(), old_values.end());
  std::vector<std::string> changes;
  for (const auto& [path, value] : new_values) {
    const auto old = gone.find(path);
    const std::string was = old == gone.end() ? "absent" : old->second;
    if (was != value) changes.push_back(fmt::format("{}: {} -> {}", path, was, value));
    if (old != gone.end()) gone.erase(old);
  }
  for (const auto& [path, value] : gone) {
    changes.push_back(fmt::format("{}: {} -> absent", path, value));
  }
  return changes;
}

std::vector<std::string> declaration_mistakes(const Section& root) {
  std::vector<std::string> mistakes;
  std::set<std::pair<std::string, std::string>> seen;
  const auto source = std::make_shared<Source>(Source{Source::Kind::program, "declaration", 0});
  for (const KeyInfo& key : list_keys(root)) {
    // The same path is fine in two rows of one choice, but not beside the choice.
    const std::string with = fmt::format("{}", fmt::join(key.only_with, ", "));
    if (!seen.emplace(key.path, with).second || (!with.empty() && seen.contains({key.path, ""}))) {
      mistakes.push_back(key.path + ": declared twice in one mapping");
    }
    if (key.kind != KeyInfo::Kind::value || key.required) continue;
    Node node;
    Issues issues;
    Problems problems;
    const bool good = read_yaml(key.default_text, source, node, issues) &&
                      static_cast<const ValueEntry&>(*key.entry).accepts(node, problems);
    if (!good) {
      mistakes.push_back(fmt::format("{}: its default {} is refused: {}", key.path,
                                     key.default_text,
                                     problems.empty() ? "no YAML" : problems[0].text));
    }
  }
  return mistakes;
}

}  // namespace llmtrain::recipe
