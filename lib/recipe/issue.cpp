#include "lib/recipe/issue.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "lib/recipe/section.hpp"

namespace llmtrain::recipe {

namespace {

// A hostile file can hold half a million mistakes; nobody reads so many.
constexpr std::size_t kKept = 1000;
constexpr std::size_t kPrinted = 50;

std::string joined(const std::vector<Issue>& issues) {
  std::string text;
  for (std::size_t i = 0; i < std::min(issues.size(), kPrinted); ++i) {
    if (i > 0) text += '\n';
    text += issues[i].text();
  }
  if (issues.size() > kPrinted) {
    text += fmt::format("\n... and {} more", issues.size() - kPrinted);
  }
  return text;
}

std::string line_of(const Entry& at, const std::string& problem, const std::string& hint) {
  Issues issues;
  issues.add(at, problem, hint);
  return issues.sorted().front().text();
}

}  // namespace

std::string Issue::text() const {
  std::string text = file;
  if (line > 0) text += fmt::format(":{}:{}", line, column);
  if (!argument.empty()) text += ": " + printable(argument, 200);
  // "a.b=value" already names the key that most of its issues are about.
  const bool named = argument.starts_with(key_path + "=") || argument == "~" + key_path;
  if (!key_path.empty() && !named) text += ": " + key_path;
  if (!text.empty()) text += ": ";
  text += problem;
  return hint.empty() ? text : text + " (" + hint + ")";
}

void Issues::add(const Entry& at, std::string problem, std::string hint) {
  add(at.position() ? at.position() : at.owner().section_position(), at.path(), std::move(problem),
      std::move(hint));
}

void Issues::add(const Where& where, std::string key_path, std::string problem, std::string hint) {
  if (found_.size() >= kKept) return;
  Found found{0, {}};
  Issue& issue = found.issue;
  issue.key_path = std::move(key_path);
  issue.problem = std::move(problem);
  issue.hint = std::move(hint);
  if (where.source) {
    found.order = where.source->order;
    if (where.source->kind == Source::Kind::command_line) {
      issue.file = "command line";
      issue.argument = where.source->name;
    } else {
      issue.file = where.source->name;
      issue.line = where.line;
      issue.column = where.column;
    }
  }
  found_.push_back(std::move(found));
}

void Issues::truncate(std::size_t size) { found_.resize(size); }

std::vector<Issue> Issues::sorted() const {
  std::vector<Found> found = found_;
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.order, a.issue.line, a.issue.column) <
           std::tie(b.order, b.issue.line, b.issue.column);
  });
  std::vector<Issue> issues;
  for (Found& one : found) issues.push_back(std::move(one.issue));
  return issues;
}

RefusedValue::RefusedValue(const Entry& at, std::string problem, std::string hint)
    : RecipeError(line_of(at, problem, hint)),
      at_(&at),
      problem_(std::move(problem)),
      hint_(std::move(hint)) {}

InvalidRecipe::InvalidRecipe(std::vector<Issue> issues)
    : RecipeError(joined(issues)), issues_(std::move(issues)) {}

}  // namespace llmtrain::recipe
