#pragma once
/// Post-processors of tokenizer.json: the special tokens around a text.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::data {

class Field;

/// Ids in order; PostProcessor::kText stands for the text's own, exactly once.
using TokenFrame = std::vector<std::int32_t>;

/// One row per type.
struct PostProcessorType {
  std::string_view type;
  /// Puts its special tokens around `frame`.
  void (*apply)(const Field& field, TokenFrame& frame);
};
std::span<const PostProcessorType> post_processor_types();

/// Immutable.
class PostProcessor {
 public:
  static constexpr std::int32_t kText = -1;

  /// ByteLevel, which adds nothing (it moves offsets, which nothing here has).
  PostProcessor();
  /// From tokenizer.json's "post_processor"; DataError naming a field that cannot be honoured.
  explicit PostProcessor(const Field& field);

  /// A single text as Hugging Face frames it with `add_special_tokens=True`.
  const TokenFrame& frame() const { return frame_; }
  /// As in tokenizer.json.
  const std::string& json() const { return json_; }

 private:
  void apply(const Field& field);

  TokenFrame frame_ = {kText};
  std::string json_;
};

}  // namespace llmtrain::data
