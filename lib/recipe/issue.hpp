#pragma once
/// What is wrong with a recipe: every issue with its position, collected and reported together.

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/recipe/node.hpp"

namespace llmtrain::recipe {

class Entry;
class Section;

struct Issue {
  std::string file;  ///< "command line" for an override
  int line = 0;      ///< from 1; 0 = the file as a whole, or an override
  int column = 0;
  std::string key_path;  ///< "optimizer.lr", empty for the file as a whole
  std::string problem;
  std::string hint;      ///< "did you mean `lr`?", "allowed: a, b"; may be empty
  std::string argument;  ///< the override as given, otherwise empty

  /// `file:line:col: key.path: problem (hint)` or `command line: a.b=value: problem (hint)`.
  std::string text() const;
};

/// Collects issues; cross-field rules (`Section::validate`) add theirs here.
class Issues {
 public:
  /// At the key's position, or, if the recipe does not set it, at that of the section around it.
  void add(const Entry& at, std::string problem, std::string hint = {});
  /// At an explicit position. Beyond an internal bound issues are counted, not kept.
  void add(const Where& where, std::string key_path, std::string problem, std::string hint = {});

  std::size_t size() const { return found_.size(); }
  bool empty() const { return found_.empty(); }
  /// Forgets all but the first `size` issues.
  void truncate(std::size_t size);
  /// True when so many issues are known that looking for near names is no longer worth it.
  bool plenty() const { return found_.size() >= 64; }
  /// The issues in the order of files, lines and columns; overrides last.
  std::vector<Issue> sorted() const;

 private:
  struct Found {
    int order;
    Issue issue;
  };
  std::vector<Found> found_;
};

/// Thrown where a value turns out wrong because more is known than in the rules of its own section:
/// `what()` is the line of an Issue.
class RefusedValue : public RecipeError {
 public:
  RefusedValue(const Entry& at, std::string problem, std::string hint = {});
  /// As if the rule had been one of the recipe's own.
  void add_to(Issues& issues) const { issues.add(*at_, problem_, hint_); }

 private:
  const Entry* at_;  // lives as long as the recipe
  std::string problem_, hint_;
};

/// Thrown by load(): `what()` has one line per issue.
class InvalidRecipe : public RecipeError {
 public:
  explicit InvalidRecipe(std::vector<Issue> issues);
  const std::vector<Issue>& issues() const noexcept { return issues_; }

 private:
  std::vector<Issue> issues_;
};

}  // namespace llmtrain::recipe
