#include "lib/base/require.hpp"

namespace llmtrain::detail {

std::string located_message(std::string message, const std::source_location& where) {
  return fmt::format("internal error: {} ({}:{})", message, where.file_name(), where.line());
}

}  // namespace llmtrain::detail
