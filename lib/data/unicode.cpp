#include "lib/data/unicode.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utf8proc.h>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/base/utf8.hpp"

namespace llmtrain::data {

namespace {

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

// Hugging Face's normalizers have the tables of Unicode 9, utf8proc 2.8 those of Unicode 15. To the
// former these characters of later versions have no decomposition, no combining class and no
// composition. Found by comparing the two on every assigned code point, alone and between marks.
// U+11A7 is not of them: utf8proc 2.8 takes it for a final consonant of Hangul, which it is not.
constexpr Range kUnknownToForms[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9}};

// Combining marks of later versions than Unicode 9.
constexpr Range kLaterMarks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
    {0xCF3, 0xCF3},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},
    {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},
    {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x1183A},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4},
    {0x11A01, 0x11A0A}, {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47},
    {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A},
    {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E},
    {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x11F00, 0x11F01},
    {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4},
    {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

// Marks in Unicode 9 that became letters.
constexpr Range kFormerMarks = {0x1CF2, 0x1CF3};

// Upper case letters of Unicode 16 and 17 that utf8proc 2.8 lacks; Rust's
// to_lowercase has them. `lower` is that of `first`.
struct CaseRange {
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t lower;
};
constexpr CaseRange kLaterCases[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                     {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                     {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                     {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                     {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};

bool in_ranges(std::span<const Range> ranges, std::uint32_t code_point) {
  const auto above =
      std::upper_bound(ranges.begin(), ranges.end(), code_point,
                       [](std::uint32_t value, const Range& range) { return value < range.first; });
  return above != ranges.begin() && code_point <= std::prev(above)->last;
}

utf8proc_option_t options_of(UnicodeForm form) {
  const bool composed = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const bool compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                        (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

/// Text whose neighbours are ASCII or unknown to the normalization, so that it stands for itself.
void append_normalized_run(UnicodeForm form, std::string_view text, std::string& out) {
  if (text.empty()) return;
  const utf8proc_option_t options = options_of(form);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> code_points(text.size() + 1);
  utf8proc_ssize_t count = utf8proc_decompose(
      bytes, size, code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), options);
  if (count > std::ssize(code_points)) {
    code_points.resize(static_cast<std::size_t>(count) + 1);
    count = utf8proc_decompose(bytes, size, code_points.data(), count, options);
  }
  require(count >= 0, "utf8proc: {}", count < 0 ? utf8proc_errmsg(count) : "");
  count = utf8proc_normalize_utf32(code_points.data(), count, options);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(static_cast<std::uint32_t>(code_points[static_cast<std::size_t>(i)]), out);
  }
}

/// Calls visit(character, code_point) for the characters of valid UTF-8.
template <class Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t length = utf8_char_length(text);
    visit(text.substr(0, length), decode_utf8(text));
    text.remove_prefix(length);
  }
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

}  // namespace

void append_normalized(UnicodeForm form, std::string_view text, std::string& out) {
  // ASCII is in every form and meets nothing but what follows it.
  while (!text.empty()) {
    const auto* other = std::find_if_not(text.begin(), text.end(), is_ascii);
    std::size_t plain = static_cast<std::size_t>(other - text.begin());
    if (plain > 0 && plain < text.size()) --plain;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) return;
    // A character that Hugging Face's tables do not know starts anew, as an ASCII one does.
    std::size_t end = is_ascii(text[0]) ? 1 : 0;
    std::size_t unknown = 0;
    while (end < text.size() && !is_ascii(text[end])) {
      const std::size_t length = utf8_char_length(text.substr(end));
      if (in_ranges(kUnknownToForms, decode_utf8(text.substr(end)))) {
        unknown = length;
        break;
      }
      end += length;
    }
    append_normalized_run(form, text.substr(0, end), out);
    out += text.substr(end, unknown);
    text.remove_prefix(end + unknown);
  }
}

void append_lower_case(std::string_view text, std::string& out) {
  for_each_character(text, [&](std::string_view, std::uint32_t code_point) {
    if (code_point == 0x130) {  // the one that becomes two characters
      out += "i\xCC\x87";
      return;
    }
    const auto later =
        std::find_if(std::begin(kLaterCases), std::end(kLaterCases), [&](const CaseRange& range) {
          return code_point >= range.first && code_point <= range.last;
        });
    append_utf8(later != std::end(kLaterCases) ? later->lower + (code_point - later->first)
                                               : static_cast<std::uint32_t>(utf8proc_tolower(
                                                     static_cast<utf8proc_int32_t>(code_point))),
                out);
  });
}

void append_without_marks(std::string_view text, std::string& out) {
  for_each_character(text, [&](std::string_view character, std::uint32_t code_point) {
    const utf8proc_category_t category =
        utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
    const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                      category == UTF8PROC_CATEGORY_ME;
    const bool was_mark =
        mark ? !in_ranges(kLaterMarks, code_point) : in_ranges({&kFormerMarks, 1}, code_point);
    if (!was_mark) out += character;
  });
}

bool is_white_space(std::uint32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x20 || code_point == 0x85 ||
         code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202F || code_point == 0x205F ||
         code_point == 0x3000;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_char_length(text.substr(at));
    if (length == 0 || !is_white_space(decode_utf8(text.substr(at)))) break;
    at += length;
  }
  return at;
}

std::string_view last_character(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && length < 4 &&
         (static_cast<unsigned char>(text[text.size() - length]) & 0xC0u) == 0x80u) {
    ++length;
  }
  const std::string_view last = text.substr(text.size() - std::min(length, text.size()));
  return utf8_char_length(last) == last.size() ? last : std::string_view();
}

std::size_t trailing_white_space(std::string_view text) {
  std::size_t size = 0;
  for (;;) {
    const std::string_view last = last_character(text.substr(0, text.size() - size));
    if (last.empty() || !is_white_space(decode_utf8(last))) return size;
    size += last.size();
  }
}

}  // namespace llmtrain::data
