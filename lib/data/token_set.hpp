#pragma once
/// Token files read as one sequence of documents, and the index of those that `prepare` makes.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/token_file.hpp"
#include "lib/data/token_shard.hpp"

namespace llmtrain::data {

/// File name of the description beside the shards.
inline constexpr std::string_view kTokenIndexName = "index.json";

/// One source file of a set.
struct TokenSetSource {
  std::string name;  ///< path relative to its root: what the held-out rule hashes
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  bool operator==(const TokenSetSource&) const = default;
};

/// One shard as the index describes it.
struct TokenSetShard {
  std::string file;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t source_bytes = 0;
  std::string payload_hash;  ///< XXH3-128, hexadecimal
};

/// What a set was made from; equal keys mean equal shards.
struct TokenSetKey {
  std::string files;      ///< hash of names, sizes and times of the sources
  std::string tokenizer;  ///< fingerprint
  std::string options;    ///< hash of the options that decide documents, shards and split
  bool operator==(const TokenSetKey&) const = default;
};

/// Content of index.json.
struct TokenSetIndex {
  TokenSetKey key;
  std::uint64_t vocab_size = 0;
  std::uint64_t empty_documents = 0;  ///< skipped: they have no token
  std::vector<TokenSetSource> sources;
  std::vector<TokenSetShard> shards;

  std::string to_json() const;
  /// DataError naming `name` and the field for anything malformed.
  static TokenSetIndex from_json(std::string_view text, std::string_view name);
};

/// The index in `directory`; DataError if it is missing or malformed.
TokenSetIndex read_token_index(const std::filesystem::path& directory);

/// Token files read as one sequence. Documents and tokens are numbered through all files.
class TokenSet {
 public:
  using Document = TokenDocument;

  /// Without files. `tokenizer` is the fingerprint of the one whose ids all files hold.
  TokenSet(std::uint64_t vocab_size, std::string tokenizer)
      : vocab_size_(vocab_size), tokenizer_(std::move(tokenizer)) {}
  /// Opens directory/index.json and its shards; DataError if any is missing, damaged or not the one
  /// that the index describes.
  static TokenSet open(const std::filesystem::path& directory,
                       ShardCheck check = ShardCheck::header);

  /// Appends the documents of `file`, whose ids are those of this set's vocabulary.
  void add(std::unique_ptr<const TokenFile> file);

  std::uint64_t vocab_size() const { return vocab_size_; }
  const std::string& tokenizer() const { return tokenizer_; }
  std::uint64_t token_count() const { return token_starts_.back(); }
  std::uint64_t document_count() const { return document_starts_.back(); }
  /// Bytes of text of all documents, without prompts; empty if some file does not tell.
  std::optional<std::uint64_t> source_bytes() const { return source_bytes_; }
  /// Tokens of all prompts.
  std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  /// One per file, in their order.
  std::vector<std::string> content_hashes() const;

  Document document(std::uint64_t index) const;
  /// First token of document `index` in the set; token_count() for index == document_count().
  std::uint64_t token_begin(std::uint64_t index) const;
  /// "bits/stl_vector.h" for a whole file, "book.txt@65536" for a part of one.
  std::string document_name(std::uint64_t index) const;

  /// Copies tokens [begin, begin + out.size()) of the set, across files.
  void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const;

 private:
  std::uint64_t vocab_size_;
  std::string tokenizer_;
  std::vector<std::unique_ptr<const TokenFile>> files_;
  std::vector<std::uint64_t> token_starts_{0};     // per file, and the total
  std::vector<std::uint64_t> document_starts_{0};  // per file, and the total
  std::optional<std::uint64_t> source_bytes_ = 0;
  std::uint64_t prompt_tokens_ = 0;
};

}  // namespace llmtrain::data
