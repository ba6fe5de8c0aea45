#include "lib/checkpoint/json_reader.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

namespace {

constexpr std::size_t kMaxSkipDepth = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// Bytes of the well-formed sequence at `text[i]` (Unicode 15, table 3-7), 0 if it is malformed.
std::size_t utf8_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) -> unsigned {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
  };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
    if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogate
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
    if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string source)
    : text_(text), source_(std::move(source)) {
  while (at_ < text_.size()) {
    const std::size_t length = utf8_length(text_, at_);
    if (length == 0) fail_here("invalid UTF-8");
    at_ += length;
  }
  at_ = 0;
}

void JsonReader::fail_here(std::string_view problem) const {
  fail<CheckpointError>("{}: byte {} of the JSON text: {}", source_, at_, problem);
}

void JsonReader::skip_whitespace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

void JsonReader::expect(char c) {
  skip_whitespace();
  if (at_ >= text_.size()) fail_here(fmt::format("expected '{}', found the end", c));
  if (text_[at_] != c) {
    fail_here(fmt::format("expected '{}', found '{}'", c, printable(text_.substr(at_, 1))));
  }
  ++at_;
}

void JsonReader::open_object() {
  expect('{');
  first_ = true;
}

void JsonReader::open_array() {
  expect('[');
  first_ = true;
}

bool JsonReader::next_member(char closing) {
  skip_whitespace();
  if (peek() == closing) {
    ++at_;
    first_ = false;
    return false;
  }
  if (!first_) expect(',');
  first_ = false;
  return true;
}

bool JsonReader::next_key(std::string& key) {
  if (!next_member('}')) return false;
  key = read_string(kMaxTensorNameBytes);
  expect(':');
  return true;
}

bool JsonReader::next_element() { return next_member(']'); }

std::string JsonReader::read_string(std::size_t limit_bytes) {
  expect('"');
  std::string out;
  while (true) {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
    if (at_ - start > limit_bytes || out.size() > limit_bytes - (at_ - start)) {
      fail_here(fmt::format("a string longer than {} bytes", limit_bytes));
    }
    out.append(text_.substr(start, at_ - start));
    if (at_ >= text_.size()) fail_here("the text ends inside a string");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') fail_here("a control character inside a string");
    ++at_;
    append_escape(out);
  }
  ++at_;
  return out;
}

void JsonReader::append_escape(std::string& out) {
  const char c = peek();
  ++at_;
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out += c;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u':
      break;
    default:
      --at_;
      fail_here("an unknown escape sequence");
  }
  std::uint32_t code = read_hex4();
  if (code >= 0xD800 && code <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const std::uint32_t low = read_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail_here("an unpaired surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code <= 0xDFFF) {
    fail_here("an unpaired surrogate");
  }
  append_utf8(out, code);
}

std::uint32_t JsonReader::read_hex4() {
  std::uint32_t value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 4 || error != std::errc{} || end != digits.data() + 4) {
    fail_here("\\u needs four hexadecimal digits");
  }
  at_ += 4;
  return value;
}

std::string_view JsonReader::number_token() {
  skip_whitespace();
  const std::size_t start = at_;
  const auto digits = [&] {
    const std::size_t before = at_;
    while (is_digit(peek())) ++at_;
    if (at_ == before) fail_here("expected a digit");
  };
  if (peek() == '-') ++at_;
  const bool zero = peek() == '0';
  digits();
  if (zero && at_ - start > (text_[start] == '-' ? 2u : 1u))
    fail_here("a number with a leading zero");
  if (peek() == '.') {
    ++at_;
    digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    digits();
  }
  return text_.substr(start, at_ - start);
}

std::uint64_t JsonReader::read_unsigned(std::uint64_t limit) {
  skip_whitespace();
  if (!is_digit(peek())) fail_here("expected a non-negative integer");
  const std::string_view token = number_token();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc{} || value > limit) {
    fail_here(fmt::format("{} is more than {}", printable(token), limit));
  }
  if (end != token.data() + token.size()) {
    fail_here(fmt::format("expected an integer, found {}", printable(token)));
  }
  return value;
}

std::vector<std::int64_t> JsonReader::read_dims(std::size_t limit_count) {
  std::vector<std::int64_t> dims;
  open_array();
  while (next_element()) {
    if (dims.size() == limit_count) fail_here(fmt::format("more than {} entries", limit_count));
    dims.push_back(static_cast<std::int64_t>(
        read_unsigned(static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))));
  }
  return dims;
}

Scalar JsonReader::read_scalar(std::size_t limit_string_bytes) {
  skip_whitespace();
  if (peek() == '"') return read_string(limit_string_bytes);
  for (const bool value : {false, true}) {
    const std::string_view word = value ? "true" : "false";
    if (text_.substr(at_, word.size()) == word) {
      at_ += word.size();
      return value;
    }
  }
  const std::string_view token = number_token();
  const char* const last = token.data() + token.size();
  if (token.find_first_of(".eE") == std::string_view::npos) {
    std::int64_t value = 0;
    if (std::from_chars(token.data(), last, value).ec != std::errc{}) {
      fail_here(fmt::format("{} does not fit 64 bits", printable(token)));
    }
    return value;
  }
  double value = 0;
  if (std::from_chars(token.data(), last, value).ec != std::errc{}) {
    fail_here(fmt::format("{} is outside the range of a double", printable(token)));
  }
  return value;
}

void JsonReader::skip_value() {
  std::vector<char> closing;
  std::string key;
  do {
    skip_whitespace();
    const char c = peek();
    if (c == '{' || c == '[') {
      if (closing.size() == kMaxSkipDepth) fail_here("nested too deeply");
      closing.push_back(c == '{' ? '}' : ']');
      expect(c);
      first_ = true;
    } else if (text_.substr(at_, 4) == "null") {
      at_ += 4;
    } else {
      read_scalar(text_.size());
    }
    while (!closing.empty() && !(closing.back() == '}' ? next_key(key) : next_element())) {
      closing.pop_back();
    }
  } while (!closing.empty());
}

void JsonReader::finish() {
  skip_whitespace();
  if (at_ != text_.size()) fail_here("text after the end of the document");
}

void SeenKeys::once(std::string_view key) {
  if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
    json_.fail_here(fmt::format("key '{}' twice in one object", printable(key)));
  }
  seen_.emplace_back(key);
}

void SeenKeys::require_all(std::initializer_list<std::string_view> keys) const {
  for (const std::string_view key : keys) {
    if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) {
      json_.fail_here(fmt::format("the object that ends here has no '{}'", key));
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  std::string out(text.substr(0, kMaxBytes));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  if (text.size() > kMaxBytes) out += "...";
  return out;
}

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTensorNameBytes &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
                  c == '_' || c == '-';
         });
}

}  // namespace llmtrain::checkpoint
