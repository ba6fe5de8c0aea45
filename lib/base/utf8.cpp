#include "lib/base/utf8.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace llmtrain {

namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }

}  // namespace

std::size_t utf8_char_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if (first == 0xE0 && second < 0xA0) return 0;  // overlong
  if (first == 0xED && second > 0x9F) return 0;  // surrogate
  if (first == 0xF0 && second < 0x90) return 0;  // overlong
  if (first == 0xF4 && second > 0x8F) return 0;  // above U+10FFFF
  return length;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const std::size_t length = utf8_char_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::size_t invalid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && utf8_char_length(text.substr(at)) == 0) ++at;
  return at;
}

void append_utf8(std::uint32_t code_point, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::uint32_t decode_utf8(std::string_view text) {
  const std::size_t length = utf8_char_length(text);
  const auto first = static_cast<unsigned char>(text[0]);
  if (length <= 1) return first;
  std::uint32_t code_point = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    code_point = (code_point << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  return code_point;
}

std::string escape_controls(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_char_length(text);
    const std::size_t bytes = std::max<std::size_t>(length, 1);
    const std::uint32_t code_point = length == 0 ? 0 : decode_utf8(text);
    if (code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) {
      for (const char c : text.substr(0, bytes)) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return out;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    for (std::size_t bad = invalid_utf8_prefix(text); bad > 0; --bad) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace llmtrain
