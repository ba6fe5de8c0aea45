#pragma once
/// A directory of its own for one test, removed with all its content at the end of the scope.

#include <filesystem>
#include <stdlib.h>
#include <string>
#include <system_error>

#include "lib/base/require.hpp"

namespace llmtrain::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "llmtrain-test-XXXXXX").string();
    require<StorageError>(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace llmtrain::test
