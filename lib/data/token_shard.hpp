#pragma once
/// Token shards: files of tokenised documents.
///
/// Little-endian file layout, format version 2:
///
///     offset size
///          0    8  magic "LLMTOKEN"
///          8    4  format version
///         12    4  bytes per token: 2 (vocabulary <= 65536) or 4
///         16    8  vocabulary size; every token id is below it
///         24    8  token count
///         32    8  document count
///         40    8  source bytes: sum over documents
///         48    8  tokenizer fingerprint
///         56    8  build key: what the shard was made from, for resuming `prepare`
///         64   16  XXH3-128 of everything behind the header, high half first
///         80    8  documents without text that were skipped
///         88    8  prompt tokens: sum over documents
///         96    8  XXH3-64 of bytes 0..95
///        104   24  zero
///        128       documents: document count entries of 40 bytes (DocumentEntry)
///                  tokens: token count ids; the file ends here
///
/// Version 1 had no prompts: entries of 32 bytes, and the checksum at 88. It is refused, and
/// `open_or_prepare` makes such a set again.
///
/// Tokens are those of the documents alone: start and end tokens are added by the packing.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/mapped_file.hpp"

namespace llmtrain::data {

/// One document of a shard, as stored.
struct DocumentEntry {
  std::uint64_t token_end = 0;  ///< its tokens are [previous entry's token_end, token_end)
  std::uint64_t source_bytes =
      0;  ///< UTF-8 bytes of text that the tokens behind the prompt stand for
  std::uint64_t source_offset = 0;  ///< where it starts in its source file
  std::uint32_t source = 0;         ///< index into the sources of the set (index.json)
  std::uint32_t whole_file = 0;     ///< 1 if the document is the whole source file
  std::uint64_t prompt_tokens =
      0;  ///< of its tokens the first ones, which are read and not trained
};
static_assert(sizeof(DocumentEntry) == 40);

struct ShardHeader {
  std::uint32_t token_size = 2;
  std::uint64_t vocab_size = 0;
  std::uint64_t token_count = 0;
  std::uint64_t document_count = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t tokenizer_fingerprint = 0;
  std::uint64_t build_key = 0;
  Hash128 payload_hash;
  std::uint64_t empty_documents = 0;
  std::uint64_t prompt_tokens = 0;
  bool operator==(const ShardHeader&) const = default;
};

inline constexpr std::size_t kShardHeaderBytes = 128;

/// A shard that another version of this program made.
class OtherShardVersion : public DataError {
  using DataError::DataError;
};

/// Collects documents in memory and writes the file in one atomic step.
class ShardBuilder {
 public:
  ShardBuilder(std::uint64_t vocab_size, std::uint64_t tokenizer_fingerprint,
               std::uint64_t build_key);

  /// Adds a document. `entry.token_end` is filled in here. InternalError for an id outside the
  /// vocabulary.
  void add(DocumentEntry entry, std::span<const std::int32_t> tokens);
  /// Counts a document that is left out because it has no text.
  void skip_empty() { ++header_.empty_documents; }

  /// Writes the shard (StorageError on failure, nothing left behind) and returns its header.
  ShardHeader write(const std::filesystem::path& path);

 private:
  ShardHeader header_;
  std::vector<DocumentEntry> documents_;
  std::string tokens_;
};

/// How much of a shard is read when it is opened.
enum class ShardCheck {
  header,   ///< header and file size; later reads still check ids against the vocabulary
  payload,  ///< also the payload's hash, every document entry and every token id
};

/// A shard mapped into memory for reading. Move-only. The file must not be changed while it is
/// open.
class TokenShard {
 public:
  /// DataError naming file and remedy for anything that is not a whole, undamaged shard.
  static TokenShard open(const std::filesystem::path& path, ShardCheck check = ShardCheck::header);

  const std::filesystem::path& path() const { return path_; }
  const ShardHeader& header() const { return header_; }
  DocumentEntry document(std::uint64_t index) const;
  /// First token of a document; DataError if the entries are not in order.
  std::uint64_t token_begin(std::uint64_t document) const;
  /// Copies tokens [begin, begin + out.size()); DataError for an id outside the vocabulary.
  void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const;

 private:
  TokenShard(std::filesystem::path path, MappedFile file);
  void check_payload() const;

  std::filesystem::path path_;
  MappedFile file_;
  ShardHeader header_;
};

/// Reads a header from the first bytes of a file of `file_size` bytes; `name` is for messages.
/// DataError for anything that `TokenShard::open` would refuse before it looks at the payload.
ShardHeader parse_shard_header(std::span<const std::byte> bytes, std::uint64_t file_size,
                               std::string_view name);

}  // namespace llmtrain::data
