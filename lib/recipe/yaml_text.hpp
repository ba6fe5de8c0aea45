#pragma once
/// Checks of YAML text that must come before a parser sees it.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain::recipe {

struct TextProblem {
  int line = 0;  ///< from 1; 0 = the text as a whole
  int column = 0;
  std::string problem;
  std::string hint;
};

/// The first thing in `text` that no recipe may hold: too many bytes, bytes that are not UTF-8,
/// control characters, tabs as indentation, directives, brackets nested deeper than the limit.
std::optional<TextProblem> check_text(std::string_view text);

/// Number of bytes of the UTF-8 sequence at the start of `text`, 0 if it is not one (overlong
/// forms, surrogates and values above U+10FFFF included).
std::size_t utf8_sequence(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace llmtrain::recipe
