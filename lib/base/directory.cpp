#include "lib/base/directory.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <system_error>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

bool has_entry(const std::filesystem::path& path) {
  struct stat unused {};
  if (::lstat(path.c_str(), &unused) == 0) return true;
  require<StorageError>(errno == ENOENT || errno == ENOTDIR, "{}: {}", path.string(),
                        std::strerror(errno));
  return false;
}

void create_new_directory(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    fail<StorageError>("{}: cannot create the directory: {}", path.string(), std::strerror(errno));
  }
}

void create_directories_durably(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_type found = std::filesystem::status(path, error).type();
  if (found == std::filesystem::file_type::directory) return;
  require<StorageError>(!error || found == std::filesystem::file_type::not_found, "{}: {}",
                        path.string(), error.message());
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  create_directories_durably(parent);
  // Another process may make the same one at the same time.
  if (::mkdir(path.c_str(), 0777) != 0 &&
      (errno != EEXIST || !std::filesystem::is_directory(path, error))) {
    fail<StorageError>("{}: cannot create the directory: {}", path.string(), std::strerror(errno));
  }
  sync_directory(parent);
}

std::filesystem::path user_cache_directory() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "llmtrain";
  const char* const home = std::getenv("HOME");
  const std::filesystem::path base =
      home != nullptr ? std::filesystem::path(home) / ".cache" : std::filesystem::path("/tmp");
  return base / "llmtrain";
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail<StorageError>("{}: cannot rename to {}: {}", from.string(), to.string(),
                       std::strerror(errno));
  }
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  require<StorageError>(!error, "{}: cannot remove: {}", path.string(), error.message());
}

}  // namespace llmtrain
