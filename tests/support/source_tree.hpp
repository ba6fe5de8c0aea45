#pragma once
/// Files that tests read from the source tree.

#include <filesystem>

namespace llmtrain {

/// `path` is relative to tests/: where they were built, or where the environment variable
/// LLMTRAIN_TESTS_DIR says that they are now.
std::filesystem::path test_file(const std::filesystem::path& path);

}  // namespace llmtrain
