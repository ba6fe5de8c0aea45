#pragma once
/// Reads and writes of a file that are under way at the same time.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace llmtrain::offload {

/// Bytes of a file that come to memory, or go from there.
struct DiskRequest {
  bool is_write = false;
  std::uint64_t offset = 0;
  std::span<std::byte> memory;
  std::uint64_t id = 0;
};

struct DiskCompletion {
  std::uint64_t id = 0;
  /// Bytes, perhaps fewer than were asked for; or a negative errno.
  std::int64_t result = 0;
};

/// Of one open file, which outlives it. Before its end all requests have completed.
class DiskQueue {
 public:
  virtual ~DiskQueue() = default;
  DiskQueue() = default;
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  virtual std::string_view name() const = 0;
  /// Begins a request and does not wait for it; any thread. As many may be under way as the queue
  /// was made for.
  virtual void submit(const DiskRequest& request) = 0;
  /// A completion with this id that is of no request; any thread. One at a time.
  virtual void wake(std::uint64_t id) = 0;
  /// Waits for the next completion; one thread.
  virtual DiskCompletion wait() = 0;
};

/// Linux's io_uring, by its system calls; null where the kernel has none that is new enough (5.6),
/// or refuses it.
std::unique_ptr<DiskQueue> make_uring_queue(int file, unsigned depth);
/// Threads that call pread and pwrite.
std::unique_ptr<DiskQueue> make_thread_queue(int file, int threads);
/// The first of these that there is; the second with LLMTRAIN_IO_URING=off in the environment.
std::unique_ptr<DiskQueue> make_disk_queue(int file, unsigned depth);

}  // namespace llmtrain::offload
