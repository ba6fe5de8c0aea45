#include "lib/base/ending.hpp"

#include <filesystem>

#include <fmt/format.h>

#include "lib/base/file.hpp"

namespace llmtrain {

Ending ending_of(const std::exception& error) {
  if (const auto* const ours = dynamic_cast<const Error*>(&error)) {
    return {ours->exit_code(), ours->what()};
  }
  if (const auto* const of_file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const bool is_users = is_of_the_path(of_file->code().value());
    return {is_users ? ExitCode::invalid_data : ExitCode::storage,
            fmt::format("{}: {}", of_file->path1().string(), of_file->code().message())};
  }
  return {ExitCode::runtime, fmt::format("unexpected: {}", error.what())};
}

}  // namespace llmtrain
