#pragma once
/// What cleaning needs to know of every document: size, hash, verdict of the filters, sketch; and
/// the files that hold it between passes.
///
/// Little-endian file layout: magic "LLMCLEAN"; format version (4 bytes); entries of a sketch (4);
/// build key (8); document count (8); XXH3-128 of everything behind the header, high half first
/// (16); the documents (DocumentSignature, 56 bytes each); then their sketches (4 bytes per entry).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "lib/base/hash.hpp"

namespace llmtrain::data {

struct DocumentSignature {
  std::uint64_t offset = 0;  ///< in its source file
  std::uint64_t bytes = 0;   ///< of text
  Hash128 hash;              ///< of the text, normalised if the options say so
  double value = 0;          ///< what the filter measured
  std::uint32_t file = 0;    ///< index into the source files
  std::int32_t filter = -1;  ///< the filter that drops it (index of text_filter_table), or -1
  std::uint32_t flags = 0;
  std::uint32_t unused = 0;

  static constexpr std::uint32_t kWholeFile = 1, kHeldOut = 2, kHasSketch = 4;
  bool has(std::uint32_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(DocumentSignature) == 56);

struct SignatureShard {
  std::uint32_t sketch_entries = 0;          ///< 0 without sketches
  std::vector<DocumentSignature> documents;  ///< in the order of the sources
  std::vector<std::uint32_t> sketches;       ///< sketch_entries per document; 0 without kHasSketch
};

/// Writes the file in one atomic step; StorageError on failure.
void write_signatures(const std::filesystem::path& path, std::uint64_t build_key,
                      const SignatureShard& shard);

/// Whether there is a file of this build that looks whole; its content is not read.
bool has_signatures(const std::filesystem::path& path, std::uint64_t build_key);

/// The file's content; empty if it is missing, damaged or of another build.
std::optional<SignatureShard> read_signatures(const std::filesystem::path& path,
                                              std::uint64_t build_key);

}  // namespace llmtrain::data
