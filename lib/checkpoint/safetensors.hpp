#pragma once
/// Reading safetensors files (https://github.com/huggingface/safetensors): u64 little-endian header
/// length N, N bytes of JSON, then the tensors' bytes without holes.
///
/// Everything is validated before anything is allocated for it: the rules of the Rust reference
/// plus duplicate names, unknown keys and unknown dtypes. Data is read with pread, never mapped, so
/// that a file that shrinks is an error and not a signal.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/checkpoint/box.hpp"
#include "lib/tensor/dtype.hpp"

namespace llmtrain::checkpoint {

/// Element types of the file format that this program reads, ascending in the format's alignment
/// rank.
enum class StoredType : std::uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64
};

/// "BF16", "F32", ... as the header spells them.
std::string_view to_string(StoredType type);
std::optional<StoredType> parse_stored_type(std::string_view name);
std::size_t size_of(StoredType type);
StoredType stored_type(DType dtype);
/// Empty for BOOL, I8 and I16, which no tensor of ours has.
std::optional<DType> tensor_dtype(StoredType type);

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{16} << 20;
inline constexpr std::size_t kMaxTensorsPerFile = std::size_t{1} << 17;

using Metadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::f32;
  Dims shape;
  std::uint64_t offset = 0;  // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
};

/// The header of a file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // ascending by offset
  std::vector<std::uint32_t> by_name;     // indices of entries, ascending by name
  Metadata metadata;
};

/// Checks the header's JSON text, of a file that holds `data_bytes` after it. CheckpointError names
/// `source`, the tensor and the rule it breaks.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                           const std::string& source);

/// An open file with a valid header. Reads are positional: const and safe from several threads.
class SafetensorsFile {
 public:
  /// DataError if the file cannot be read, CheckpointError if it is not valid.
  static SafetensorsFile open(const std::filesystem::path& path);
  /// The same for a name that an untrusted file gave: a symbolic link is refused.
  static SafetensorsFile open_nofollow(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  std::uint64_t file_bytes() const { return file_bytes_; }
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const Metadata& metadata() const { return header_.metadata; }

  const SafetensorsEntry* find(std::string_view name) const;
  /// CheckpointError naming the file if there is no such tensor.
  const SafetensorsEntry& entry(std::string_view name) const;

  /// Reads a whole tensor; `out` has exactly its bytes.
  void read_tensor(std::string_view name, std::span<std::byte> out) const;
  /// Reads out.size() bytes from `first_byte` of the tensor on; the range lies inside it.
  void read_range(const SafetensorsEntry& entry, std::uint64_t first_byte,
                  std::span<std::byte> out) const;

 private:
  explicit SafetensorsFile(File file);

  File file_;
  std::uint64_t file_bytes_ = 0;
  SafetensorsHeader header_;
};

}  // namespace llmtrain::checkpoint
