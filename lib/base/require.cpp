#include "lib/base/require.hpp"

namespace llmtrain::detail {

std::string located_message(std::string message, const SourceLine& where) {
  return fmt::format("internal error: {} ({}:{})", message, where.file, where.line);
}

}  // namespace llmtrain::detail
