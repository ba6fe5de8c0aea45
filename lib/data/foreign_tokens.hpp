#pragma once
/// Token files of other programs as training and held-out documents, read where they lie.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/data/source.hpp"
#include "lib/data/token_file.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// A file's documents, divided by the held-out rule. Both parts read the same mapped file, which
/// must not be changed meanwhile.
struct ForeignTokens {
  std::unique_ptr<const TokenFile> training;
  std::unique_ptr<const TokenFile> held_out;
  std::uint64_t empty_documents = 0;  ///< skipped: they have no token
  /// The layout does not say what a document is, and no start or end token divides the file.
  bool undivided = false;
  std::vector<std::int32_t> first_tokens;  ///< some of the first document
};

/// Opens token files (`SourceFile::tokens` is not null) and reads each once, several at a time:
/// that finds the documents, checks every id, counts bytes of text and hashes the content, so that
/// nothing is kept but 32 bytes for each document.
///
/// Start and end tokens of `tokenizer` at either end of a document are not part of it, because the
/// packing adds them; where the layout does not say what a document is, documents lie between them.
/// A document without other tokens is skipped. The name of a document is "FILE@N", N counting the
/// file's documents from 0.
///
/// Bytes of text are the tokens' own; they are not known when the tokenizer does not keep text, or
/// when a start or end token stands inside a document.
///
/// DataError as the layout's reader, and with file, number and offset for an id that the tokenizer
/// does not have, for ids too narrow for its vocabulary, and for a file without documents.
std::vector<ForeignTokens> open_foreign_tokens(std::span<const SourceFile> files,
                                               const Tokenizer& tokenizer, const HeldOutRule& rule);

/// Says what was read, and how it begins with this tokenizer: the files do not tell which one made
/// them. Warns of undivided files. `opened` are those of `files`.
void log_foreign_tokens(std::span<const SourceFile> files, std::span<const ForeignTokens> opened,
                        const Tokenizer& tokenizer);

}  // namespace llmtrain::data
