#pragma once
/// Reading of what a store has: who may not read a checkpoint knows nothing of its damage.

#include "lib/base/file_errors.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

/// A file of a checkpoint, which may be whole, is closed to this user. Of storage, as all that does
/// not tell that a checkpoint is damaged.
class NotReadable : public StorageError {
  using StorageError::StorageError;
};

/// What `read` returns of a file of a checkpoint; NotReadable, with the remedy, for lack of rights.
template <class Read>
auto read_stored(const Read& read) {
  try {
    return read();
  } catch (const NoRight& error) {
    fail<NotReadable>("{}; give this user the right to read it", error.what());
  }
}

}  // namespace llmtrain::checkpoint
