#pragma once
/// Decoders of tokenizer.json: from the spellings of tokens back to text.

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace llmtrain::data {

class Field;

/// One row per type.
struct DecoderType {
  using Tokens = std::vector<std::string>;
  /// DataError if the tokens get longer than `limit` together.
  using Step = std::function<void(Tokens& tokens, std::size_t limit)>;
  std::string_view type;
  Step (*make)(const Field& field);
};
std::span<const DecoderType> decoder_types();

/// A sequence of steps over a list of spellings, which is joined in the end. Immutable.
///
/// Where Hugging Face shows U+FFFD for bytes that are not UTF-8, the bytes themselves come out.
class Decoder {
 public:
  /// ByteLevel.
  Decoder();
  /// From tokenizer.json's "decoder"; DataError naming a field that cannot be honoured exactly.
  explicit Decoder(const Field& field);

  /// Nothing but ByteLevel: each token stands for its bytes, whatever is beside it.
  bool is_byte_level() const { return byte_level_; }
  std::string decode(std::vector<std::string> spellings) const;
  /// As in tokenizer.json.
  const std::string& json() const { return json_; }

 private:
  void add(const Field& field);

  std::vector<DecoderType::Step> steps_;
  bool byte_level_ = true;
  std::string json_;
};

}  // namespace llmtrain::data
