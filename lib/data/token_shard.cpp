#include "lib/data/token_shard.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

constexpr std::string_view kMagic = "LLMTOKEN";
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHashedHeaderBytes = 96;
constexpr std::uint64_t kMaxNarrowVocab = 65536;
constexpr std::string_view kRemedy = "delete it and prepare the data again";

/// The header's bytes as they lie in the file.
struct RawHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t token_size;
  std::uint64_t vocab_size;
  std::uint64_t token_count;
  std::uint64_t document_count;
  std::uint64_t source_bytes;
  std::uint64_t tokenizer_fingerprint;
  std::uint64_t build_key;
  std::uint64_t payload_hash_high;
  std::uint64_t payload_hash_low;
  std::uint64_t empty_documents;
  std::uint64_t prompt_tokens;
  std::uint64_t header_hash;
  std::uint8_t zero[24];
};
static_assert(sizeof(RawHeader) == kShardHeaderBytes);
static_assert(offsetof(RawHeader, header_hash) == kHashedHeaderBytes);

std::uint64_t hash_of(const RawHeader& raw) {
  return hash64(std::as_bytes(std::span(&raw, 1)).first(kHashedHeaderBytes));
}

template <class T>
std::int32_t load_token(const std::byte* tokens, std::uint64_t index) {
  T token;
  std::memcpy(&token, tokens + index * sizeof(T), sizeof token);
  return static_cast<std::int32_t>(token);
}

}  // namespace

ShardBuilder::ShardBuilder(std::uint64_t vocab_size, std::uint64_t tokenizer_fingerprint,
                           std::uint64_t build_key) {
  header_.token_size = vocab_size <= kMaxNarrowVocab ? 2 : 4;
  header_.vocab_size = vocab_size;
  header_.tokenizer_fingerprint = tokenizer_fingerprint;
  header_.build_key = build_key;
}

void ShardBuilder::add(DocumentEntry entry, std::span<const std::int32_t> tokens) {
  require(entry.prompt_tokens <= tokens.size(), "a prompt of {} in {} tokens", entry.prompt_tokens,
          tokens.size());
  const std::size_t before = tokens_.size();
  tokens_.resize(before + tokens.size() * header_.token_size);
  char* to = tokens_.data() + before;
  for (const std::int32_t id : tokens) {
    require(id >= 0 && static_cast<std::uint64_t>(id) < header_.vocab_size,
            "token {} of a vocabulary of {}", id, header_.vocab_size);
    const auto bits = static_cast<std::uint32_t>(id);
    std::memcpy(to, &bits, header_.token_size);  // little-endian: the low bytes come first
    to += header_.token_size;
  }
  header_.token_count += tokens.size();
  header_.source_bytes += entry.source_bytes;
  header_.prompt_tokens += entry.prompt_tokens;
  ++header_.document_count;
  entry.token_end = header_.token_count;
  documents_.push_back(entry);
}

ShardHeader ShardBuilder::write(const std::filesystem::path& path) {
  const auto documents = std::as_bytes(std::span(documents_));
  Hasher128 hasher;
  hasher.update(documents);
  hasher.update(tokens_);
  header_.payload_hash = hasher.digest();

  RawHeader raw{};
  std::memcpy(raw.magic, kMagic.data(), sizeof raw.magic);
  raw.version = kVersion;
  raw.token_size = header_.token_size;
  raw.vocab_size = header_.vocab_size;
  raw.token_count = header_.token_count;
  raw.document_count = header_.document_count;
  raw.source_bytes = header_.source_bytes;
  raw.tokenizer_fingerprint = header_.tokenizer_fingerprint;
  raw.build_key = header_.build_key;
  raw.payload_hash_high = header_.payload_hash.high;
  raw.payload_hash_low = header_.payload_hash.low;
  raw.empty_documents = header_.empty_documents;
  raw.prompt_tokens = header_.prompt_tokens;
  raw.header_hash = hash_of(raw);

  std::string content;
  content.reserve(sizeof raw + documents.size() + tokens_.size());
  content.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  content.append(reinterpret_cast<const char*>(documents.data()), documents.size());
  content.append(tokens_);
  write_file_atomic(path, content);
  return header_;
}

ShardHeader parse_shard_header(std::span<const std::byte> bytes, std::uint64_t file_size,
                               std::string_view name) {
  require<DataError>(bytes.size() >= kShardHeaderBytes && file_size >= kShardHeaderBytes,
                     "{}: {} bytes are too short for a token shard (truncated?); {}", name,
                     file_size, kRemedy);
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  require<DataError>(std::memcmp(raw.magic, kMagic.data(), sizeof raw.magic) == 0,
                     "{}: not a token shard (it does not start with '{}')", name, kMagic);
  require<OtherShardVersion>(raw.version == kVersion,
                             "{}: token shard of format {}, this program reads {}; {}", name,
                             raw.version, kVersion, kRemedy);
  require<DataError>(raw.header_hash == hash_of(raw), "{}: damaged header; {}", name, kRemedy);
  bool zero = true;
  for (const std::uint8_t byte : raw.zero) zero &= byte == 0;
  const bool sizes = raw.vocab_size > 0 && raw.vocab_size <= (1ull << 31) &&
                     raw.token_size == (raw.vocab_size <= kMaxNarrowVocab ? 2 : 4);
  require<DataError>(zero && sizes, "{}: header with {} bytes per token for {} tokens; {}", name,
                     raw.token_size, raw.vocab_size, kRemedy);
  // Each count is bounded by the file's size before they are multiplied, so nothing overflows.
  const std::uint64_t payload = file_size - kShardHeaderBytes;
  const bool fits = raw.document_count <= payload / sizeof(DocumentEntry) &&
                    raw.token_count <= payload / raw.token_size;
  require<DataError>(
      fits &&
          raw.document_count * sizeof(DocumentEntry) + raw.token_count * raw.token_size == payload,
      "{}: {} bytes, but its header announces {} documents and {} tokens "
      "(truncated?); {}",
      name, file_size, raw.document_count, raw.token_count, kRemedy);
  require<DataError>(raw.prompt_tokens <= raw.token_count,
                     "{}: header with prompts of {} in {} tokens; {}", name, raw.prompt_tokens,
                     raw.token_count, kRemedy);
  return {raw.token_size,      raw.vocab_size,
          raw.token_count,     raw.document_count,
          raw.source_bytes,    raw.tokenizer_fingerprint,
          raw.build_key,       {raw.payload_hash_high, raw.payload_hash_low},
          raw.empty_documents, raw.prompt_tokens};
}

TokenShard::TokenShard(std::filesystem::path path, MappedFile file)
    : path_(std::move(path)),
      file_(std::move(file)),
      header_(parse_shard_header(file_.bytes(), file_.bytes().size(), path_.string())) {}

TokenShard TokenShard::open(const std::filesystem::path& path, ShardCheck check) {
  TokenShard shard(path, MappedFile::open(path));
  if (check == ShardCheck::payload) shard.check_payload();
  return shard;
}

DocumentEntry TokenShard::document(std::uint64_t index) const {
  require(index < header_.document_count, "document {} of {}", index, header_.document_count);
  DocumentEntry entry;
  std::memcpy(&entry, file_.bytes().data() + kShardHeaderBytes + index * sizeof entry,
              sizeof entry);
  return entry;
}

std::uint64_t TokenShard::token_begin(std::uint64_t index) const {
  const std::uint64_t begin = index == 0 ? 0 : document(index - 1).token_end;
  const std::uint64_t end =
      index == header_.document_count ? header_.token_count : document(index).token_end;
  if (begin > end || end > header_.token_count) {
    fail<DataError>("{}: document {} has tokens [{}, {}) of {}; {}", path_.string(), index, begin,
                    end, header_.token_count, kRemedy);
  }
  return begin;
}

void TokenShard::read_tokens(std::uint64_t begin, std::span<std::int32_t> out) const {
  require(begin <= header_.token_count && out.size() <= header_.token_count - begin,
          "tokens [{}, {}) of {}", begin, begin + out.size(), header_.token_count);
  const std::byte* tokens =
      file_.bytes().data() + kShardHeaderBytes + header_.document_count * sizeof(DocumentEntry);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = header_.token_size == 2 ? load_token<std::uint16_t>(tokens, begin + i)
                                     : load_token<std::uint32_t>(tokens, begin + i);
    if (out[i] < 0 || static_cast<std::uint64_t>(out[i]) >= header_.vocab_size) {
      fail<DataError>("{}: token {} is {}, outside the vocabulary of {}; {}", path_.string(),
                      begin + i, out[i], header_.vocab_size, kRemedy);
    }
  }
}

void TokenShard::check_payload() const {
  const std::span<const std::byte> payload = file_.bytes().subspan(kShardHeaderBytes);
  require<DataError>(hash128(payload) == header_.payload_hash,
                     "{}: its content does not have the checksum of its header (damaged); {}",
                     path_.string(), kRemedy);
  std::uint64_t source_bytes = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t last_end = 0;
  for (std::uint64_t d = 0; d < header_.document_count; ++d) {
    const std::uint64_t begin = token_begin(d);
    const DocumentEntry entry = document(d);
    source_bytes += entry.source_bytes;
    prompt_tokens += entry.prompt_tokens;
    last_end = entry.token_end;
    require<DataError>(entry.prompt_tokens <= last_end - begin,
                       "{}: document {} has a prompt of {} in {} tokens; {}", path_.string(), d,
                       entry.prompt_tokens, last_end - begin, kRemedy);
  }
  require<DataError>(source_bytes == header_.source_bytes &&
                         prompt_tokens == header_.prompt_tokens && last_end == header_.token_count,
                     "{}: its documents do not add up to its header; {}", path_.string(), kRemedy);
  std::vector<std::int32_t> block(65536);
  for (std::uint64_t at = 0; at < header_.token_count; at += block.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(block.size(), header_.token_count - at);
    read_tokens(at, std::span(block).first(count));
  }
}

}  // namespace llmtrain::data
