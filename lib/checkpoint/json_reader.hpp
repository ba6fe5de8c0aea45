#pragma once
/// A strict, schema-directed JSON reader for untrusted files (RFC 8259, no extensions).
///
/// The caller asks for the value it expects, so there is no tree and no recursion: nesting deeper
/// than the schema is a type error. Invalid UTF-8, control characters, unpaired surrogates, leading
/// zeros and numbers out of range are refused. Every error is a CheckpointError naming the source
/// and the byte.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace llmtrain::checkpoint {

using Scalar = std::variant<bool, std::int64_t, double, std::string>;

class JsonReader {
 public:
  /// `text` must outlive the reader; `source` names it in messages.
  JsonReader(std::string_view text, std::string source);

  void open_object();
  /// Reads the next key and its colon; false after the object's closing brace.
  bool next_key(std::string& key);
  void open_array();
  /// Positions at the next element; false after the array's closing bracket.
  bool next_element();

  /// A string of at most `limit_bytes` after unescaping.
  std::string read_string(std::size_t limit_bytes);
  /// Digits only: no sign, fraction, exponent or leading zero.
  std::uint64_t read_unsigned(std::uint64_t limit = ~std::uint64_t{0});
  /// An array of non-negative integers, at most `limit_count` of them.
  std::vector<std::int64_t> read_dims(std::size_t limit_count);
  /// A boolean, a number (an integer if it is written as one) or a string.
  Scalar read_scalar(std::size_t limit_string_bytes);
  /// Passes over any value nested at most 64 deep.
  void skip_value();
  /// Demands that only whitespace follows.
  void finish();

  [[noreturn]] void fail_here(std::string_view problem) const;

 private:
  void skip_whitespace();
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c);
  bool next_member(char closing);
  std::string_view number_token();
  void append_escape(std::string& out);
  std::uint32_t read_hex4();

  std::string_view text_;
  std::string source_;
  std::size_t at_ = 0;
  bool first_ = false;  // no member of the innermost open container has been read
};

/// Keys of one object with a fixed set of keys: refuses repeats, and checks that none is missing.
class SeenKeys {
 public:
  explicit SeenKeys(const JsonReader& json) : json_(json) {}
  void once(std::string_view key);
  void require_all(std::initializer_list<std::string_view> keys) const;

 private:
  const JsonReader& json_;
  std::vector<std::string> seen_;
};

/// Appends `text` (valid UTF-8) as a quoted JSON string.
void append_json_string(std::string& out, std::string_view text);

/// `text` for a message: at most 80 bytes, everything outside printable ASCII as '?'.
std::string printable(std::string_view text);

/// Whether `name` (valid UTF-8) may name a tensor: 1 to 256 bytes without control characters.
bool is_tensor_name(std::string_view name);
inline constexpr std::size_t kMaxTensorNameBytes = 256;

/// Whether `name` is a plain file name: 1 to 255 bytes of [A-Za-z0-9._-], not starting with a dot.
bool is_plain_file_name(std::string_view name);

}  // namespace llmtrain::checkpoint
