#include "lib/data/document_signatures.hpp"

#include <cstring>
#include <span>
#include <string>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

constexpr std::string_view kMagic = "LLMCLEAN";
constexpr std::uint32_t kVersion = 1;

struct RawHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sketch_entries;
  std::uint64_t build_key;
  std::uint64_t document_count;
  std::uint64_t payload_hash_high;
  std::uint64_t payload_hash_low;
};
static_assert(sizeof(RawHeader) == 48);

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// What is wrong with the file of `size` bytes; empty if its header fits to it.
std::string_view problem_of(const RawHeader& header, std::uint64_t size) {
  if (std::memcmp(header.magic, kMagic.data(), sizeof header.magic) != 0) return "not a signature";
  if (header.version != kVersion) return "another format";
  // Bounded before they are multiplied.
  const std::uint64_t document =
      sizeof(DocumentSignature) + std::uint64_t{header.sketch_entries} * sizeof(std::uint32_t);
  const bool whole = header.document_count <= size / sizeof(DocumentSignature) &&
                     sizeof header + header.document_count * document == size;
  return whole ? "" : "truncated";
}

}  // namespace

void write_signatures(const std::filesystem::path& path, std::uint64_t build_key,
                      const SignatureShard& shard) {
  require(shard.sketches.size() == shard.documents.size() * shard.sketch_entries,
          "{} entries of sketches for {} documents", shard.sketches.size(), shard.documents.size());
  std::string content(sizeof(RawHeader), '\0');
  content += bytes_of(shard.documents);
  content += bytes_of(shard.sketches);
  const Hash128 hash = hash128(std::string_view(content).substr(sizeof(RawHeader)));
  RawHeader header{.version = kVersion,
                   .sketch_entries = shard.sketch_entries,
                   .build_key = build_key,
                   .document_count = shard.documents.size(),
                   .payload_hash_high = hash.high,
                   .payload_hash_low = hash.low};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  std::memcpy(content.data(), &header, sizeof header);
  write_file_atomic(path, content);
}

bool has_signatures(const std::filesystem::path& path, std::uint64_t build_key) {
  if (!std::filesystem::exists(path)) return false;
  const File file = File::open_read(path);
  RawHeader header{};
  const std::uint64_t size = file.size();
  if (size < sizeof header) return false;
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  return problem_of(header, size).empty() && header.build_key == build_key;
}

std::optional<SignatureShard> read_signatures(const std::filesystem::path& path,
                                              std::uint64_t build_key) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string content = read_file(path);
  RawHeader header{};
  std::memcpy(&header, content.data(), std::min(content.size(), sizeof header));
  std::string_view problem = problem_of(header, content.size());
  if (problem.empty()) {
    const Hash128 hash = hash128(std::string_view(content).substr(sizeof header));
    if (hash != Hash128{header.payload_hash_high, header.payload_hash_low}) problem = "damaged";
  }
  if (!problem.empty()) {
    log::info("{}: {}; making it again", path.string(), problem);
    return std::nullopt;
  }
  if (header.build_key != build_key) return std::nullopt;
  SignatureShard shard{.sketch_entries = header.sketch_entries};
  shard.documents.resize(header.document_count);
  shard.sketches.resize(header.document_count * header.sketch_entries);
  const char* from = content.data() + sizeof header;
  std::memcpy(shard.documents.data(), from, bytes_of(shard.documents).size());
  from += bytes_of(shard.documents).size();
  std::memcpy(shard.sketches.data(), from, bytes_of(shard.sketches).size());
  return shard;
}

}  // namespace llmtrain::data
