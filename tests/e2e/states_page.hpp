#pragma once
/// The table of docs/optimizers.md that says what the states of each optimizer take, as numbers.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Of one parameter: m and n, or r, s, n as the page calls them.
using Sizes = std::map<std::string, double, std::less<>>;

/// Numbers, names of `sizes` (also in backticks), + - * /, parentheses; what stands side by side is
/// multiplied. InternalError for all else.
double value_of(std::string_view formula, const Sizes& sizes);

/// A row of the table.
struct StatesRow {
  std::vector<std::string> names;
  std::string states, fp32, fp64;

  /// Of a cell's alternatives, "4 to 12", "0; 4" or "4, else 8", that one.
  double bytes(bool wide, std::size_t alternative, const Sizes& sizes) const;
  /// The formula that stands in `states` between these two texts, of which the first is there once;
  /// "": the end.
  double in_text(std::string_view before, std::string_view behind, const Sizes& sizes) const;
};

/// In the order of the page.
std::vector<StatesRow> states_table();
/// The row that has this name; InternalError if there is none.
const StatesRow& row_of(const std::vector<StatesRow>& table, std::string_view name);

}  // namespace llmtrain
