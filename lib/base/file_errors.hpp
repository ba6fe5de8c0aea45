#pragma once
/// Errors of files, for those who answer a reason of its own way. For all others they are the
/// DataError or StorageError that any other reason gives.

#include <string>

#include "lib/base/error.hpp"

namespace llmtrain {

/// This user has no right to read a file: what it holds is not known.
class NoRight : public DataError {
  using DataError::DataError;
};

/// This user may not write there, or nobody may, because the file system is for reading alone.
class NotWritable : public StorageError {
 public:
  NotWritable(const std::string& message, int error) : StorageError(message), error_(error) {}
  int error() const noexcept { return error_; }  // an errno
  static bool is_meant_by(int error);

 private:
  int error_;
};

/// The message says what helps.
class Remedied : public StorageError {
  using StorageError::StorageError;
};

}  // namespace llmtrain
