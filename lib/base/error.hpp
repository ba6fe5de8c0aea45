#pragma once
/// Exception types, sorted by who can act on them. No fmt here: device code includes this header.

#include <stdexcept>
#include <string>

namespace llmtrain {

/// Exit codes of the executable; scripts rely on them.
enum class ExitCode : int {
  done = 0,
  runtime = 1,
  recipe = 2,
  does_not_fit = 3,
  invalid_data = 4,
  numeric = 5,
  peer_lost = 6,
  storage = 7,
  preempted = 75,
  no_progress = 93,
};

/// Root of all errors that the program reports on purpose; `what()` is the whole message for the
/// user.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

template <ExitCode code>
class ErrorWith : public Error {
 public:
  explicit ErrorWith(const std::string& message) : Error(code, message) {}
};

/// The recipe or the command line is wrong; the user edits it.
class RecipeError : public ErrorWith<ExitCode::recipe> {
  using ErrorWith::ErrorWith;
};
/// The plan needs more memory, disk or ranks than there are.
class DoesNotFitError : public ErrorWith<ExitCode::does_not_fit> {
  using ErrorWith::ErrorWith;
};
/// Training text, token files or tokenizer files are unusable.
class DataError : public ErrorWith<ExitCode::invalid_data> {
  using ErrorWith::ErrorWith;
};
/// A checkpoint or a weight file is damaged or does not belong to this run.
class CheckpointError : public ErrorWith<ExitCode::invalid_data> {
  using ErrorWith::ErrorWith;
};
/// Loss or gradients are not finite and the policy says stop.
class NumericError : public ErrorWith<ExitCode::numeric> {
  using ErrorWith::ErrorWith;
};
/// A peer died, stalled, or disagrees about a collective.
class CommError : public ErrorWith<ExitCode::peer_lost> {
  using ErrorWith::ErrorWith;
};
/// Storage is full or fails.
class StorageError : public ErrorWith<ExitCode::storage> {
  using ErrorWith::ErrorWith;
};
/// A device, its driver or a library call failed.
class DeviceError : public ErrorWith<ExitCode::runtime> {
  using ErrorWith::ErrorWith;
};
/// A broken invariant of ours; the message carries file and line.
class InternalError : public ErrorWith<ExitCode::runtime> {
  using ErrorWith::ErrorWith;
};

}  // namespace llmtrain
