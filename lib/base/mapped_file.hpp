#pragma once
/// A file mapped into memory for reading.

#include <cstddef>
#include <filesystem>
#include <span>

namespace llmtrain {

/// The bytes of a file that must not be changed while it is mapped. Move-only.
class MappedFile {
 public:
  /// DataError if the file cannot be opened or mapped, or is not a regular file.
  static MappedFile open(const std::filesystem::path& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;  // null for an empty file
  std::size_t size_ = 0;
};

}  // namespace llmtrain
