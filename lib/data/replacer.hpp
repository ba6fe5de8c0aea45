#pragma once
/// Replace, a normalizer and a decoder of tokenizer.json.

#include <optional>
#include <string>
#include <string_view>

#include "lib/data/regex.hpp"

namespace llmtrain::data {

class Field;

/// Bytes that text of `size` bytes may grow to.
inline std::size_t growth_limit(std::size_t size) { return 65536 + 64 * size; }

/// Replaces every match of a text or of a pattern, from left to right. Immutable.
class Replacer {
 public:
  /// {"pattern": {"String": ...} or {"Regex": ...}, "content": ...}; DataError naming the field.
  explicit Replacer(const Field& field);

  /// Appends `text`, valid UTF-8, to `out` with its matches replaced. DataError if `out` gets
  /// longer than `limit` bytes: a few replacements in a row could fill any memory.
  void append(std::string_view text, std::string& out, std::size_t limit) const;

 private:
  std::string where_;
  std::string literal_;  // unless there is a regex
  std::optional<Regex> regex_;
  std::string content_;
};

}  // namespace llmtrain::data
