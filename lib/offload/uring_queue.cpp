// io_uring by its system calls: a library would be one more dependency for a hundred lines.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <linux/io_uring.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/require.hpp"
#include "lib/offload/disk_queue.hpp"

namespace llmtrain::offload {

namespace {

/// Memory that is shared with the kernel.
class SharedMemory {
 public:
  SharedMemory(int ring, std::uint64_t offset, std::size_t bytes) : bytes_(bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                          static_cast<off_t>(offset));
    if (memory != MAP_FAILED) memory_ = memory;
  }
  ~SharedMemory() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  bool is_there() const { return memory_ != nullptr; }
  template <class T>
  T* at(std::uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// The descriptor of a ring; closed on destruction.
struct Ring {
  io_uring_params parameters{};  // which the kernel fills in
  int fd = -1;
  explicit Ring(unsigned entries)
      : fd(static_cast<int>(::syscall(SYS_io_uring_setup, entries, &parameters))) {}
  ~Ring() {
    if (fd >= 0) ::close(fd);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Whether it can read and write at an offset (IORING_OP_READ): as old as this feature.
  bool can_read() const { return fd >= 0 && (parameters.features & IORING_FEAT_RW_CUR_POS) != 0; }
};

class UringQueue final : public DiskQueue {
 public:
  UringQueue(std::unique_ptr<Ring> ring, int file)
      : ring_(std::move(ring)),
        file_(file),
        submissions_(
            ring_->fd, IORING_OFF_SQ_RING,
            ring_->parameters.sq_off.array + ring_->parameters.sq_entries * sizeof(std::uint32_t)),
        completions_(
            ring_->fd, IORING_OFF_CQ_RING,
            ring_->parameters.cq_off.cqes + ring_->parameters.cq_entries * sizeof(io_uring_cqe)),
        entries_(ring_->fd, IORING_OFF_SQES, ring_->parameters.sq_entries * sizeof(io_uring_sqe)) {}

  bool is_mapped() const {
    return submissions_.is_there() && completions_.is_there() && entries_.is_there();
  }

  std::string_view name() const override { return "io_uring"; }

  void submit(const DiskRequest& request) override {
    io_uring_sqe entry{};
    entry.opcode = request.is_write ? IORING_OP_WRITE : IORING_OP_READ;
    entry.fd = file_;
    entry.off = request.offset;
    entry.addr = reinterpret_cast<std::uint64_t>(request.memory.data());
    entry.len = static_cast<std::uint32_t>(request.memory.size());
    entry.user_data = request.id;
    enter(entry);
  }

  void wake(std::uint64_t id) override {
    io_uring_sqe entry{};
    entry.opcode = IORING_OP_NOP;
    entry.user_data = id;
    enter(entry);
  }

  DiskCompletion wait() override {
    const io_uring_params& p = ring_->parameters;
    std::uint32_t* const head = completions_.at<std::uint32_t>(p.cq_off.head);
    std::uint32_t* const tail = completions_.at<std::uint32_t>(p.cq_off.tail);
    const std::uint32_t mask = *completions_.at<std::uint32_t>(p.cq_off.ring_mask);
    const std::uint32_t first = *head;
    while (std::atomic_ref(*tail).load(std::memory_order_acquire) == first) {
      call_kernel(0, 1, IORING_ENTER_GETEVENTS);
    }
    const io_uring_cqe& entry = completions_.at<io_uring_cqe>(p.cq_off.cqes)[first & mask];
    const DiskCompletion completion{.id = entry.user_data, .result = entry.res};
    std::atomic_ref(*head).store(first + 1, std::memory_order_release);
    return completion;
  }

 private:
  /// Hands one entry over at once, so that there is always room for the next one.
  void enter(const io_uring_sqe& entry) {
    const std::lock_guard lock(mutex_);
    const io_uring_params& p = ring_->parameters;
    std::uint32_t* const tail = submissions_.at<std::uint32_t>(p.sq_off.tail);
    const std::uint32_t mask = *submissions_.at<std::uint32_t>(p.sq_off.ring_mask);
    const std::uint32_t at = *tail & mask;
    entries_.at<io_uring_sqe>(0)[at] = entry;
    submissions_.at<std::uint32_t>(p.sq_off.array)[at] = at;
    std::atomic_ref(*tail).store(*tail + 1, std::memory_order_release);
    call_kernel(1, 0, 0);
  }

  void call_kernel(unsigned to_submit, unsigned to_complete, unsigned flags) {
    for (;;) {
      const long n =
          ::syscall(SYS_io_uring_enter, ring_->fd, to_submit, to_complete, flags, nullptr, 0);
      if (n >= static_cast<long>(to_submit)) return;
      require<StorageError>(n >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY,
                            "io_uring does not go on: {}", std::strerror(errno));
    }
  }

  std::unique_ptr<Ring> ring_;
  int file_;
  SharedMemory submissions_, completions_, entries_;
  std::mutex mutex_;  // of submissions
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(int file, unsigned depth) {
  auto ring = std::make_unique<Ring>(depth + 1);  // and a call to wake
  if (!ring->can_read()) return nullptr;
  auto queue = std::make_unique<UringQueue>(std::move(ring), file);
  if (!queue->is_mapped()) return nullptr;
  return queue;
}

}  // namespace llmtrain::offload
