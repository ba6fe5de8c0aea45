#include "tests/support/source_tree.hpp"

#include <cstdlib>

namespace llmtrain {

std::filesystem::path test_file(const std::filesystem::path& path) {
  const char* const elsewhere = std::getenv("LLMTRAIN_TESTS_DIR");
  return std::filesystem::path(elsewhere != nullptr ? elsewhere : LLMTRAIN_TESTS_DIR) / path;
}

}  // namespace llmtrain
