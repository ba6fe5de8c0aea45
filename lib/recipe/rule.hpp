#pragma once
/// What a declared key accepts beyond its type: range, length, allowed values, unit.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmtrain::recipe {

/// Of a list key, range and allowed values hold for every element; of an optional key, for a value
/// that is present.
struct Rule {
  std::optional<double> min, max;
  bool min_excluded = false, max_excluded = false;
  std::optional<std::size_t> min_length, max_length;  ///< elements of a list, bytes of a text
  std::vector<std::string> allowed;                   ///< of a text key; empty = any
  std::string unit;                                   ///< for people: "tokens", "steps"
};

Rule at_least(double min);
Rule above(double min);
Rule at_most(double max);
Rule below(double max);
/// Both ends included.
Rule between(double min, double max);
/// Exactly `n` elements of a list (bytes of a text).
Rule length(std::size_t n);
/// At least one element, or a text that is not empty.
Rule not_empty();
Rule any_of(std::vector<std::string> allowed);
Rule unit(std::string name);
/// Both rules together: `at_least(0) & below(1) & length(2) & unit("tokens")`.
Rule operator&(Rule a, const Rule& b);

/// "must be >= 0 and < 1" when `value` breaks the range, otherwise empty.
std::string range_violation(const Rule& rule, double value);
/// As range_violation for the number of elements of a list or bytes of a text.
std::string length_violation(const Rule& rule, std::size_t n, std::string_view of_what);
/// ">= 0 and < 1", empty without a range.
std::string range_text(const Rule& rule);

/// The one table between the names of an enum in a recipe and its values.
template <class E>
struct Names : Rule {
  std::vector<std::pair<std::string, E>> rows;
};

/// one_of<Norm>({{"layer_norm", Norm::layer}, {"rms_norm", Norm::rms}})
template <class E>
Names<E> one_of(std::initializer_list<std::pair<std::string, E>> rows) {
  Names<E> names;
  names.rows = rows;
  for (const auto& row : names.rows) names.allowed.push_back(row.first);
  return names;
}

}  // namespace llmtrain::recipe
