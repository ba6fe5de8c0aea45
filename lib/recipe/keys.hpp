#pragma once
/// Looking at a schema: every key path, help for one of them, and keys that nobody read.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

/// One key path of the schema. List elements have `*` as index: "data.sources.*.path".
struct KeyInfo {
  enum class Kind { value, choice, section, optional_section, list };
  Kind kind = Kind::value;
  std::string path;
  std::string type;          ///< "number", "list of integers", "choice", "section"
  std::string default_text;  ///< YAML; empty if required
  std::string range;         ///< ">= 0 and < 1"; may be empty
  std::string unit;          ///< may be empty
  std::string doc;
  std::vector<std::string> allowed;    ///< of names and choices
  std::vector<std::string> only_with;  ///< "optimizer.name: adamw"; empty if always there
  bool required = false;
  const Entry* entry = nullptr;  ///< lives as long as the schema
};

/// All keys in the order of declaration, including the rows of choices that are not selected and,
/// for lists, those of an element. Keys that several rows of a choice declare appear once per row.
std::vector<KeyInfo> list_keys(const Section& root);

/// The keys with this path, which may use `*` or a number for list elements; several if rows of a
/// choice declare the same key, none if there is no such key.
std::vector<KeyInfo> find_keys(const Section& root, std::string_view path);

/// Text for `llmtrain help a.b`: type, default, range, unit, allowed values, doc; for a section one
/// line per key, for the empty path for all keys. Empty if there is no such key.
std::optional<std::string> help(const Section& root, std::string_view path);

/// Paths of keys, choices, lists and optional sections that no one read since the load. Rows that
/// are not selected and sections that are absent do not count.
std::vector<std::string> unread_keys(const Section& root);

/// Keys whose values differ, as "optimizer.lr: 0.001 -> 0.002", in the order of `after`; a key of a
/// row, section or list element that only one of them has reads "absent" on the other side.
std::vector<std::string> changed_values(const Section& before, const Section& after);

/// Mistakes in the declaration itself, one line each, for a test of the program's root: defaults
/// that break their own rule, a choice's row that declares a key of the section around it.
std::vector<std::string> declaration_mistakes(const Section& root);

}  // namespace llmtrain::recipe
