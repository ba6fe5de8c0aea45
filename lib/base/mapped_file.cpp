#include "lib/base/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain {

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require<DataError>(fd >= 0, "{}: cannot open for mapping: {}", path.string(),
                     std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  MappedFile file;
  void* mapped = nullptr;
  if (regular && info.st_size > 0) {
    file.size_ = static_cast<std::size_t>(info.st_size);
    mapped = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int reason = errno;
  ::close(fd);
  require<DataError>(regular, "{}: not a regular file", path.string());
  if (mapped == MAP_FAILED) {
    file.size_ = 0;
    fail<DataError>("{}: cannot map into memory: {}", path.string(), std::strerror(reason));
  }
  file.data_ = static_cast<const std::byte*>(mapped);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace llmtrain
