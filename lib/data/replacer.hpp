#pragma once
/// Replace, a normalizer and a decoder of tokenizer.json.

#include <optional>
#include <string>
#include <string_view>

#include "lib/data/regex.hpp"

namespace llmtrain::data {

class Field;

/// Replaces every match of a text or of a pattern, from left to right. Immutable.
class Replacer {
 public:
  /// {"pattern": {"String": ...} or {"Regex": ...}, "content": ...}; DataError naming the field.
  explicit Replacer(const Field& field);

  /// Appends `text`, valid UTF-8, to `out` with its matches replaced.
  void append(std::string_view text, std::string& out) const;

 private:
  std::string literal_;  // unless there is a regex
  std::optional<Regex> regex_;
  std::string content_;
};

}  // namespace llmtrain::data
