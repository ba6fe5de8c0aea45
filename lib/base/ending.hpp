#pragma once
/// How an exception ends a program: its exit code, and what the user is told.

#include <exception>
#include <string>

#include "lib/base/error.hpp"

namespace llmtrain {

struct Ending {
  ExitCode code = ExitCode::runtime;
  std::string text;
};

/// An Error's own; of a file that the standard library could not look at, StorageError's with path
/// and reason, or DataError's where the path is to blame; of anything else "unexpected: ...".
Ending ending_of(const std::exception& error);

}  // namespace llmtrain
