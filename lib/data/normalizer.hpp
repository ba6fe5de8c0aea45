#pragma once
/// Normalizers of tokenizer.json: what happens to text before anything else looks at it.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::data {

class Field;

/// One row per type.
struct NormalizerType {
  /// Appends the normalized form of any bytes to `out`; those that are not UTF-8 stay. DataError
  /// if `out` gets longer than `limit`.
  using Step = std::function<void(std::string_view text, std::string& out, std::size_t limit)>;
  std::string_view type;
  /// Each character becomes one or more at its place, at the text's beginning too.
  bool keeps_start;
  Step (*make)(const Field& field);
};
std::span<const NormalizerType> normalizer_types();

/// A sequence of steps. Immutable after construction.
class Normalizer {
 public:
  /// Leaves text as it is.
  Normalizer() = default;
  /// From tokenizer.json's "normalizer"; DataError naming a field that cannot be honoured exactly.
  explicit Normalizer(const Field& field);

  bool empty() const { return steps_.empty(); }
  bool keeps_start() const { return keeps_start_; }
  /// Bytes that are not UTF-8 stay as they are, and what is between them is normalized for itself.
  std::string apply(std::string_view text) const;
  /// As in tokenizer.json.
  const std::string& json() const { return json_; }

 private:
  void add(const Field& field);

  std::vector<NormalizerType::Step> steps_;
  bool keeps_start_ = true;
  std::string json_ = "null";
};

}  // namespace llmtrain::data
