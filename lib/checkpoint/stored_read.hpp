#pragma once
/// Reading of what a store has: who may not read a checkpoint knows nothing of its damage, and
/// storage that fails for a moment costs none.

#include <array>
#include <chrono>
#include <thread>

#include "lib/base/file_errors.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

/// A file of a checkpoint, which may be whole, is closed to this user. Of storage, as all that does
/// not tell that a checkpoint is damaged.
class NotReadable : public StorageError {
  using StorageError::StorageError;
};

/// Nothing that is on disk: whoever asked for a read wants it no more.
class GivenUp : public StorageError {
 public:
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

/// What `read` returns. Storage that fails for a moment (a server that starts again) must cost
/// neither a checkpoint, and with it the way from an older one, nor a start: what fails is read
/// again after a tenth of a second, and after another second. `before_pause` may throw instead.
template <class Read, class BeforePause>
auto read_patiently(const Read& read, const BeforePause& before_pause) {
  using namespace std::chrono_literals;
  for (const std::chrono::milliseconds pause : std::array{100ms, 1000ms}) {
    try {
      return read();
    } catch (const GivenUp&) {
      throw;
    } catch (const StorageError& error) {
      log::warning("{}; it is tried again", error.what());
    }
    before_pause();
    std::this_thread::sleep_for(pause);
  }
  return read();
}
template <class Read>
auto read_patiently(const Read& read) {
  return read_patiently(read, [] {});
}

}  // namespace llmtrain::checkpoint
