#include "lib/base/directory.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <system_error>
#include <vector>

#include "lib/base/activity.hpp"
#include "lib/base/file.hpp"
#include "lib/base/file_errors.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

[[noreturn]] void fail_errno(int error, std::string_view action,
                             const std::filesystem::path& path) {
  const std::string message =
      fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error));
  if (NotWritable::is_meant_by(error)) throw NotWritable(message, error);
  throw StorageError(message);
}

}  // namespace

bool has_entry(const std::filesystem::path& path) {
  struct stat unused {};
  if (::lstat(path.c_str(), &unused) == 0) return true;
  require<StorageError>(errno == ENOENT || errno == ENOTDIR, "{}: {}", path.string(),
                        std::strerror(errno));
  return false;
}

void create_new_directory(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) fail_errno(errno, "create the directory", path);
}

void create_directories_durably(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_type found = std::filesystem::status(path, error).type();
  if (found == std::filesystem::file_type::directory) return;
  require<StorageError>(!error || found == std::filesystem::file_type::not_found, "{}: {}",
                        path.string(), error.message());
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  create_directories_durably(parent);
  if (::mkdir(path.c_str(), 0777) != 0) {
    // Another process may make the same one at the same time.
    const int reason = errno;
    const bool is_there = reason == EEXIST && std::filesystem::is_directory(path, error);
    require<StorageError>(is_there || !std::filesystem::is_symlink(path, error),
                          "{}: is a link to {}, where there is no directory; mount its disk, or "
                          "make the directory",
                          path.string(), std::filesystem::read_symlink(path, error).string());
    if (!is_there) fail_errno(reason, "create the directory", path);
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
    const int reason = errno;
    fail_errno(reason, fmt::format("rename to {}", to.string()), from);
  }
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  // One by one, so that who watches this process sees that it gets on.
  if (std::filesystem::is_directory(std::filesystem::symlink_status(path, error))) {
    std::vector<std::filesystem::path> entries;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      entries.push_back(at->path());
    }
    for (std::size_t i = 0; i < entries.size() && !error; ++i) {
      std::filesystem::remove_all(entries[i], error);
      activity::tick();
    }
  }
  // It may be gone, or somebody else be clearing it, too.
  if (error == std::errc::no_such_file_or_directory) error.clear();
  if (!error) std::filesystem::remove_all(path, error);
  require<StorageError>(!error, "{}: cannot remove: {}", path.string(), error.message());
}

}  // namespace llmtrain
