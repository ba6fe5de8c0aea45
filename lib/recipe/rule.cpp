#include "lib/recipe/rule.hpp"

#include <fmt/format.h>

namespace llmtrain::recipe {

Rule at_least(double min) {
  Rule rule;
  rule.min = min;
  return rule;
}

Rule above(double min) {
  Rule rule = at_least(min);
  rule.min_excluded = true;
  return rule;
}

Rule at_most(double max) {
  Rule rule;
  rule.max = max;
  return rule;
}

Rule below(double max) {
  Rule rule = at_most(max);
  rule.max_excluded = true;
  return rule;
}

Rule between(double min, double max) { return at_least(min) & at_most(max); }

Rule length(std::size_t n) {
  Rule rule;
  rule.min_length = rule.max_length = n;
  return rule;
}

Rule not_empty() {
  Rule rule;
  rule.min_length = 1;
  return rule;
}

Rule any_of(std::vector<std::string> allowed) {
  Rule rule;
  rule.allowed = std::move(allowed);
  return rule;
}

Rule unit(std::string name) {
  Rule rule;
  rule.unit = std::move(name);
  return rule;
}

Rule operator&(Rule a, const Rule& b) {
  if (b.min) {
    a.min = b.min;
    a.min_excluded = b.min_excluded;
  }
  if (b.max) {
    a.max = b.max;
    a.max_excluded = b.max_excluded;
  }
  if (b.min_length) a.min_length = b.min_length;
  if (b.max_length) a.max_length = b.max_length;
  if (!b.allowed.empty()) a.allowed = b.allowed;
  if (!b.unit.empty()) a.unit = b.unit;
  return a;
}

std::string range_text(const Rule& rule) {
  std::string text;
  if (rule.min) text = fmt::format("{} {}", rule.min_excluded ? ">" : ">=", *rule.min);
  if (rule.max) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ",
                        rule.max_excluded ? "<" : "<=", *rule.max);
  }
  return text;
}

std::string range_violation(const Rule& rule, double value) {
  const bool low = rule.min && (rule.min_excluded ? value <= *rule.min : value < *rule.min);
  const bool high = rule.max && (rule.max_excluded ? value >= *rule.max : value > *rule.max);
  return low || high ? "must be " + range_text(rule) : std::string();
}

std::string length_violation(const Rule& rule, std::size_t n, std::string_view of_what) {
  const bool few = rule.min_length && n < *rule.min_length;
  const bool many = rule.max_length && n > *rule.max_length;
  if (!few && !many) return {};
  if (n == 0 && rule.min_length == 1u) return "must not be empty";
  if (rule.min_length == rule.max_length) {
    return fmt::format("must have exactly {} {}, found {}", *rule.min_length, of_what, n);
  }
  return fmt::format("must have at {} {} {}, found {}", few ? "least" : "most",
                     few ? *rule.min_length : *rule.max_length, of_what, n);
}

}  // namespace llmtrain::recipe
