#pragma once
/// Tokenizers: text to token ids and back.
///
/// Two kinds: `bytes` (every byte is a token) and `bpe` (byte-pair encoding, stored as a Hugging
/// Face tokenizer.json). A BPE over bytes as in GPT-2 and Llama 3 keeps every byte of the text. One
/// over characters as in Llama 2, or with a normalizer, may not; `keeps_text` tells.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/data/post_processor.hpp"

namespace llmtrain::data {

/// The text of the end-of-document token in the tokenizers that we make ourselves.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// The special tokens around a single text.
enum class SpecialTokens {
  none,    ///< documents: their start and end belong to the packing
  framed,  ///< as Hugging Face's `encode(text, add_special_tokens=True)` puts them
};

/// Immutable after construction; every member function may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of `text` to `out`. Nothing is added in front or behind: the documents'
  /// start and end belong to the packing. The text of an added token ("<|endoftext|>") becomes that
  /// token, as in Hugging Face's `encode(text, add_special_tokens=False)`.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& out) const = 0;
  std::vector<std::int32_t> encode(std::string_view text,
                                   SpecialTokens special = SpecialTokens::none) const;
  /// What SpecialTokens::framed puts around a text.
  virtual const TokenFrame& frame() const = 0;

  /// The bytes that token `id` stands for in the middle of a text; DataError unless the vocabulary
  /// has it.
  virtual std::string_view token_bytes(std::int32_t id) const = 0;
  /// The token as its vocabulary writes it: valid UTF-8, which the bytes need not be.
  virtual std::string_view token_spelling(std::int32_t id) const { return token_bytes(id); }
  /// The text of all tokens, special ones included, as in Hugging Face's
  /// `decode(ids, skip_special_tokens=False)`, which shows U+FFFD where here bytes that are not
  /// UTF-8 come out.
  virtual std::string decode(std::span<const std::int32_t> ids) const;

  /// Whether decode(encode(text)) == text for any bytes, valid UTF-8 or not. Otherwise what comes
  /// back is the text after the file's normalizer, with a space where the file puts one (Metaspace,
  /// Prepend, add_prefix_space) and its decoder does not take it away, with unk_token for
  /// characters that have no token, and without white space next to added tokens that strip it. A
  /// file in the style of Llama 2 (byte_fallback; Prepend and Replace, or Metaspace; a decoder that
  /// undoes them) gives back any text that holds neither U+2581 nor the text of an added token;
  /// stray bytes, which Hugging Face never sees, become byte tokens.
  virtual bool keeps_text() const = 0;

  /// One more than the largest id.
  virtual std::int64_t vocab_size() const = 0;
  /// The token that ends a document, and the one that starts it where the tokenizer has one.
  virtual std::optional<std::int32_t> eos_id() const = 0;
  virtual std::optional<std::int32_t> bos_id() const = 0;

  /// The Hugging Face tokenizer.json that describes this tokenizer: loading it with our loader or
  /// with Hugging Face's `tokenizers` gives identical ids.
  virtual std::string to_json() const = 0;

  /// XXH3-64 of everything that decides ids; token files carry it.
  virtual std::uint64_t fingerprint() const = 0;
};

/// 256 byte tokens (id = byte value) and the end-of-document token 256: a vocabulary of 257.
std::shared_ptr<const Tokenizer> make_byte_tokenizer();

struct TokenizerOptions {
  /// "bytes", or "bpe" which reads `path`.
  std::string type = "bpe";
  /// A tokenizer.json, or a directory that holds one.
  std::filesystem::path path;
};

/// One row per kind of tokenizer.
struct TokenizerKind {
  std::string_view type;
  std::string_view doc;
  std::shared_ptr<const Tokenizer> (*make)(const TokenizerOptions& options);
};
std::span<const TokenizerKind> tokenizer_kinds();

/// RecipeError for an unknown type; DataError for a file that cannot be honoured exactly.
std::shared_ptr<const Tokenizer> make_tokenizer(const TokenizerOptions& options);

/// Encodes texts[i] into result[i], in parallel over texts.
std::vector<std::vector<std::int32_t>> encode_all(const Tokenizer& tokenizer,
                                                  std::span<const std::string_view> texts);

/// Texts of tokenizer_config.json (start and end token) and tokenizer.json, with these names;
/// `make_tokenizer` and Hugging Face's AutoTokenizer read them back.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const Tokenizer& tokenizer);

/// Writes these files, in their order, into an existing directory, each atomically.
/// Where there is a tokenizer.json, a program that was killed had written both.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& directory);

}  // namespace llmtrain::data
