#pragma once
/// Fills a Section from a recipe file, its includes and the overrides of the command line.

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/foreign_keys.hpp"
#include "lib/recipe/issue.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

/// A key, or a section with all its keys, that this build does not have, and why.
struct Reserved {
  std::string_view path;    ///< "parallelism.ep"
  std::string_view reason;  ///< "this build has no mixture of experts yet"
};

/// What messages call a file, and the key under which it says its version.
struct FileKind {
  std::string_view noun = "recipe";
  std::string_view version_key = "recipe";
  std::string_view names = "a name of `recipes ls`";  ///< what may stand for a file
};

struct LoadRequest {
  /// A path, or the name of a built-in recipe. With `text`, only its name in messages and the
  /// folder that includes are relative to.
  std::filesystem::path file;
  std::optional<std::string> text;
  /// `a.b=value` (the value is YAML), `data.sources.0.path=x`, `~a.b` (back to the default).
  std::vector<std::string> overrides;
  /// Text of the built-in recipe with this name, or nothing.
  std::function<std::optional<std::string>(std::string_view)> builtin;
  std::span<const Reserved> reserved;
  std::span<const ForeignKey> foreign = foreign_keys();
  FileKind kind;
};

/// Fills `root` (whatever it held before) and returns all issues in the order of their positions.
/// Without issues every key has its final value and no key counts as read. With issues the refused
/// keys have their defaults, so that the result may be looked at but not run.
///
/// Order of precedence: defaults < `include:` files in order < the file < overrides in order.
/// Mappings merge, everything else replaces. Keys that start with `x-` are comments.
std::vector<Issue> check(Section& root, const LoadRequest& request);

/// The rules over several keys once more, where the program has set some of them since a load
/// without issues: InvalidRecipe if they break one. What was read stays as it was.
void check_rules(Section& root);

/// As check(); throws InvalidRecipe if there are issues.
void load(Section& root, const LoadRequest& request);

}  // namespace llmtrain::recipe
