#pragma once
/// A set of token shards read as one sequence of documents.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

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

/// All shards of a set, opened. Documents are numbered through all shards.
class TokenSet {
 public:
  /// Opens directory/index.json and its shards; DataError if any is missing, damaged or not the one
  /// that the index describes.
  static TokenSet open(const std::filesystem::path& directory,
                       ShardCheck check = ShardCheck::header);

  const TokenSetIndex& index() const { return index_; }
  std::uint64_t vocab_size() const { return index_.vocab_size; }
  std::uint64_t token_count() const { return token_starts_.back(); }
  std::uint64_t document_count() const { return document_starts_.back(); }
  /// Bytes of text of all documents, without prompts.
  std::uint64_t source_bytes() const { return source_bytes_; }
  /// Tokens of all prompts.
  std::uint64_t prompt_tokens() const { return prompt_tokens_; }

  /// A document's place in the set.
  struct Document {
    std::uint64_t token_begin = 0;  ///< in the whole set
    std::uint64_t token_count = 0;
    std::uint64_t source_bytes = 0;
    std::uint32_t source = 0;
    std::uint64_t source_offset = 0;
    bool whole_file = false;
    std::uint64_t prompt_tokens = 0;  ///< the first ones: read, not trained
  };
  Document document(std::uint64_t index) const;
  /// First token of document `index` in the set; token_count() for index == document_count().
  std::uint64_t token_begin(std::uint64_t index) const;
  /// "bits/stl_vector.h" for a whole file, "book.txt@65536" for a part of one.
  std::string document_name(std::uint64_t index) const;

  /// Copies tokens [begin, begin + out.size()) of the set, across shards.
  void read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const;

 private:
  TokenSetIndex index_;
  std::vector<TokenShard> shards_;
  std::vector<std::uint64_t> token_starts_;     // per shard, and the total
  std::vector<std::uint64_t> document_starts_;  // per shard, and the total
  std::uint64_t source_bytes_ = 0;
  std::uint64_t prompt_tokens_ = 0;
};

}  // namespace llmtrain::data
