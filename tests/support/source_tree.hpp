#pragma once
/// Files that tests read from the source tree.

#include <filesystem>

namespace llmtrain {

/// `path` is relative to tests/. Not from __FILE__, which compiler caches make relative.
inline std::filesystem::path test_file(const std::filesystem::path& path) {
  return std::filesystem::path(LLMTRAIN_TESTS_DIR) / path;
}

}  // namespace llmtrain
