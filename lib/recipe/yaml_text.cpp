#include "lib/recipe/yaml_text.hpp"

#include <array>

#include <fmt/format.h>

#include "lib/recipe/yaml_reader.hpp"

namespace llmtrain::recipe {

namespace {

bool is_break(char c) { return c == '\n' || c == '\r'; }

// What is wrong with the line that starts at `text`, seen from its first byte.
std::optional<TextProblem> check_line_start(std::string_view text) {
  if (text.starts_with('%')) {
    return TextProblem{0, 1, "directives (%...) are not used in recipes", "remove the line"};
  }
  const std::size_t indent = std::min(text.find_first_not_of(" \t"), text.size());
  const std::size_t tab = text.substr(0, indent).find('\t');
  const bool blank = indent == text.size() || is_break(text[indent]) || text[indent] == '#';
  if (tab == std::string_view::npos || blank) return std::nullopt;
  return TextProblem{0, static_cast<int>(tab) + 1, "a tab is used as indentation", "use spaces"};
}

}  // namespace

std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  const std::size_t n = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < n) return 0;
  char32_t code = byte(0) & (0x7fu >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  constexpr std::array<char32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallest[n] || code > 0x10ffff || surrogate ? 0 : n;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t n = utf8_sequence(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::optional<TextProblem> check_text(std::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return TextProblem{
        0, 0, fmt::format("has {} bytes, a recipe has at most {}", text.size(), kMaxFileBytes), {}};
  }
  int line = 1;
  std::size_t line_start = 0, depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto at = [&](std::string problem, std::string hint) {
      return TextProblem{line, static_cast<int>(i - line_start) + 1, std::move(problem),
                         std::move(hint)};
    };
    if (i == line_start) {
      if (auto problem = check_line_start(text.substr(i))) {
        problem->line = line;
        return problem;
      }
    }
    const char c = text[i];
    const std::size_t n = utf8_sequence(text.substr(i));
    if (n == 0) return at("is not UTF-8 text", "save the file as UTF-8");
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t' && !is_break(c)) || byte == 0x7f) {
      return at(fmt::format("holds the control character 0x{:02x}", byte), "is this a text file?");
    }
    // Counted without regard to quotes: the parser's own depth is checked again, this bounds its
    // memory.
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMaxDepth) return at(fmt::format("nested deeper than {} levels", kMaxDepth), {});
    i += n;
    if (c == '\n') {
      ++line;
      line_start = i;
    }
  }
  return std::nullopt;
}

}  // namespace llmtrain::recipe
