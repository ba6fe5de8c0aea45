#pragma once
/// Files that tests read from the source tree.

#include <cstdlib>
#include <filesystem>

namespace llmtrain {

/// `path` is relative to tests/: where they were built (not from __FILE__, which compiler caches
/// make relative), or where the environment variable LLMTRAIN_TESTS_DIR says that they are now.
inline std::filesystem::path test_file(const std::filesystem::path& path) {
  const char* const elsewhere = std::getenv("LLMTRAIN_TESTS_DIR");
  return std::filesystem::path(elsewhere != nullptr ? elsewhere : LLMTRAIN_TESTS_DIR) / path;
}

}  // namespace llmtrain
