#include "lib/recipe/scalar.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "lib/recipe/node.hpp"

namespace llmtrain::recipe {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads digits with '_' between them at `at`, appends them without '_' to `out`; the number of
// digits.
std::size_t take_digits(std::string_view text, std::size_t& at, std::string& out) {
  const std::size_t before = out.size();
  while (at < text.size()) {
    const bool group =
        text[at] == '_' && out.size() > before && at + 1 < text.size() && is_digit(text[at + 1]);
    if (!is_digit(text[at]) && !group) break;
    if (!group) out += text[at];
    ++at;
  }
  return out.size() - before;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

bool is_not_finite(std::string_view text) {
  std::string word = lower(text);
  if (word.starts_with('+') || word.starts_with('-')) word.erase(0, 1);
  if (word.starts_with('.')) word.erase(0, 1);
  return word == "inf" || word == "infinity" || word == "nan";
}

// Splits into digits without '_', as from_chars reads them; false if `text` has another form.
bool normalise(std::string_view text, std::string& digits, std::size_t& whole_digits,
               bool& integer) {
  std::size_t at = 0;
  whole_digits = take_digits(text, at, digits);
  std::size_t fraction_digits = 0;
  integer = at == text.size();
  if (at < text.size() && text[at] == '.') {
    digits += '.';
    fraction_digits = take_digits(text, ++at, digits);
  }
  if (whole_digits + fraction_digits == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    digits += 'e';
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) digits += text[at++];
    if (take_digits(text, at, digits) == 0) return false;
  }
  return at == text.size();
}

}  // namespace

NumberText parse_number(std::string_view text) {
  if (is_not_finite(text)) return {{}, "must be a finite number", {}};
  Number number;
  number.negative = text.starts_with('-');
  if (number.negative || text.starts_with('+')) text.remove_prefix(1);
  std::string digits;
  std::size_t whole_digits = 0;
  bool integer = false;
  if (!normalise(text, digits, whole_digits, integer)) return {};
  if (whole_digits > 1 && digits[0] == '0') {
    const std::size_t first = std::min(digits.find_first_not_of('0'), whole_digits - 1);
    return {{},
            "has a leading zero, which some readers take as octal",
            "write " + std::string(number.negative ? "-" : "") + printable(digits.substr(first))};
  }
  const char* end = digits.data() + digits.size();
  if (std::from_chars(digits.data(), end, number.value).ec != std::errc{}) {
    return {{}, "is too large or too small for a number", {}};
  }
  if (integer) {
    number.whole = std::from_chars(digits.data(), end, number.magnitude).ec == std::errc{};
  } else if (number.value == std::floor(number.value) && number.value <= 0x1p53) {
    number.whole = true;
    number.magnitude = static_cast<std::uint64_t>(number.value);
  }
  if (number.negative) number.value = -number.value;
  return {number, {}, {}};
}

bool needs_quotes(std::string_view text) {
  constexpr std::array<std::string_view, 10> kWords{"",    "null", "~",  "true", "false",
                                                    "yes", "no",   "on", "off",  "auto"};
  if (std::find(kWords.begin(), kWords.end(), lower(text)) != kWords.end()) return true;
  const NumberText number = parse_number(text);
  return number.number || !number.problem.empty();
}

}  // namespace llmtrain::recipe
