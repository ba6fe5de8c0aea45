#pragma once
/// Compressed text: gzip (RFC 1952) and Zstandard (RFC 8878), as a stream of bytes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

namespace llmtrain::data {

enum class Compression : std::uint8_t { none, gzip, zstd };

/// By the suffix: ".gz" and ".zst".
Compression compression_of(const std::filesystem::path& path);
/// "a.jsonl" of "a.jsonl.gz"; other paths as they are.
std::filesystem::path without_compression(const std::filesystem::path& path);

/// What compressed data may expand to. Data that is made to fill a disk expands a thousandfold and
/// more, text at most some ten times.
struct DecompressLimits {
  std::uint64_t max_ratio = 200;  ///< of the stored bytes; 1 MiB is always allowed
  std::uint64_t max_bytes = std::uint64_t{64} << 30;
};

/// Fills the buffer as far as there are bytes and returns how many it wrote; 0 only at the end.
using ReadBytes = std::function<std::size_t(std::span<std::byte>)>;

/// Gives `sink` the decompressed bytes in order, in blocks, and returns how many they were. Reads
/// any number of gzip members or Zstandard frames, one behind the other. DataError naming `name`
/// and the offset in the compressed data when it is cut off, damaged, of another format, followed
/// by anything else, needs a window above 128 MiB (zstd), or expands beyond the limits for
/// `stored_bytes`.
std::uint64_t decompress(Compression compression, const ReadBytes& read, std::uint64_t stored_bytes,
                         const DecompressLimits& limits, std::string_view name,
                         const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace llmtrain::data
