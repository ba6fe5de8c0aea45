#pragma once
/// One file of documents as tokens, whoever wrote it: what a TokenSet is made of.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace llmtrain::data {

/// A document's place in a TokenFile or TokenSet.
struct TokenDocument {
  std::uint64_t token_begin = 0;
  std::uint64_t token_count = 0;
  /// UTF-8 bytes of text behind the prompt; empty if they cannot be told from the tokens.
  std::optional<std::uint64_t> source_bytes;
  std::uint64_t prompt_tokens = 0;  ///< the first ones: read, not trained
};

/// Documents and their tokens, both numbered from 0. Tokens are those of the documents alone, one
/// document behind the other: start and end tokens, which the packing adds, are not among them.
class TokenFile {
 public:
  virtual ~TokenFile() = default;

  virtual std::uint64_t token_count() const = 0;
  virtual std::uint64_t document_count() const = 0;
  /// Bytes of text of all documents, without prompts; empty if one document's are not known.
  virtual std::optional<std::uint64_t> source_bytes() const = 0;
  /// Tokens of all prompts.
  virtual std::uint64_t prompt_tokens() const = 0;
  /// Of everything that the documents and tokens are; equal for a copy of the file.
  virtual std::string content_hash() const = 0;

  /// DataError where the file contradicts itself.
  virtual TokenDocument document(std::uint64_t index) const = 0;
  /// First token of document `index` (below document_count).
  virtual std::uint64_t token_begin(std::uint64_t index) const = 0;
  /// What the held-out rule hashes: "book.txt" for a whole file, else "book.txt@65536".
  virtual std::string document_name(std::uint64_t index) const = 0;

  /// Copies tokens [begin, begin + out.size()); DataError for an id outside the vocabulary.
  virtual void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const = 0;
};

}  // namespace llmtrain::data
