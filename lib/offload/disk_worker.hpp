#pragma once
/// A thread that talks to the disk for a store of blocks, and what the two of them share: the file,
/// the lock, and the end of it all when the file fails.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "lib/base/trace.hpp"
#include "lib/offload/block_requests.hpp"
#include "lib/offload/scratch_file.hpp"

namespace llmtrain::offload {

struct StoreOptions {
  /// XXH3 of each block, kept in memory and compared when it is read.
  bool checksums = true;
  std::function<std::unique_ptr<DiskQueue>(int file, unsigned depth)> make_queue = make_disk_queue;
};

struct StoreTraffic {
  std::uint64_t read_bytes = 0, written_bytes = 0;
  /// Of those who wanted what was not there yet, or room that was not free yet.
  double waited_seconds = 0;
};

class DiskWorker {
 public:
  using Lock = std::unique_lock<std::mutex>;
  /// What the thread does for the store, with the lock, which it may give up meanwhile. The first
  /// time is after the store's first wake().
  struct Duties {
    /// Of a block that has been read or written.
    std::function<void(std::uint64_t block, Lock& lock)> finish;
    /// Adds requests; not after a failure.
    std::function<void(Lock& lock)> begin;
  };

  /// `waits` is the name of waiting in a trace, of static storage.
  DiskWorker(ScratchFile file, const StoreOptions& options, const char* waits, Duties duties);
  /// Waits for what is under way, and begins nothing more. What duties use must live until then.
  ~DiskWorker();
  DiskWorker(const DiskWorker&) = delete;
  DiskWorker& operator=(const DiskWorker&) = delete;

  Lock lock() const { return Lock(mutex_); }
  ScratchFile& file() { return file_; }

  // All of the following with the lock.
  /// A block of the file, by a number that no other under way has; begins when the duties are done.
  void add(std::uint64_t id, bool is_write, std::uint64_t offset, std::span<std::byte> memory) {
    requests_.add(id, is_write, offset, memory);
  }
  /// Begins at once what was added; the thread alone.
  void submit() { requests_.submit(); }
  /// There is something to do for the thread.
  void wake() { requests_.wake(); }
  /// Until the condition holds; the error of the file, if it has failed.
  template <class Condition>
  void await(Lock& lock, const Condition& condition);
  void check_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  /// ScratchFile::grow; its error is that of the file ever after.
  std::uint64_t grow(std::uint64_t least, std::uint64_t wanted);
  void count(bool is_write, std::uint64_t bytes) {
    (is_write ? traffic_.written_bytes : traffic_.read_bytes) += bytes;
  }

  // And these without it.
  StoreTraffic traffic() const;
  /// "by io_uring, past the page cache".
  std::string how() const;
  /// StorageError: bytes [begin, end) of the file, which are `what`, are not what was written
  /// there.
  [[noreturn]] void fail_changed(std::uint64_t begin, std::uint64_t end,
                                 std::string_view what) const;

 private:
  void serve();

  ScratchFile file_;
  BlockRequests requests_;
  const char* waits_;
  Duties duties_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::exception_ptr failure_;
  StoreTraffic traffic_;
  std::thread thread_;
};

template <class Condition>
void DiskWorker::await(Lock& lock, const Condition& condition) {
  check_failure();
  if (condition()) return;
  const trace::Scope scope(trace::Kind::io, waits_);
  const auto begin = std::chrono::steady_clock::now();
  changed_.wait(lock, [&] { return failure_ || condition(); });
  traffic_.waited_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  check_failure();
}

}  // namespace llmtrain::offload
