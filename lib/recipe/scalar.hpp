#pragma once
/// Numbers and plain words of YAML 1.2, without the traps of YAML 1.1.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain::recipe {

struct Number {
  double value = 0;
  bool whole = false;  ///< then it is exactly +-magnitude
  bool negative = false;
  std::uint64_t magnitude = 0;
};

/// A number, or why the text is none. Both strings are empty if it does not look like a number.
struct NumberText {
  std::optional<Number> number;
  std::string problem;
  std::string hint;
};

/// [+-]digits[.digits][e[+-]digits], digits may be grouped by '_'. Refused with a reason: leading
/// zeros (octal to some parsers), .inf, .nan, values beyond a double.
NumberText parse_number(std::string_view text);

/// True if an unquoted `text` would not be read as text: a number, bool, null or a YAML 1.1 bool.
bool needs_quotes(std::string_view text);

}  // namespace llmtrain::recipe
