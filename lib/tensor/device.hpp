#pragma once
/// A device: memory with a ledger, and the copies in and out of it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/tensor/address_space.hpp"
#include "lib/tensor/device_group.hpp"
#include "lib/tensor/ledger.hpp"
#include "lib/tensor/tensor.hpp"

namespace llmtrain {

enum class DeviceKind : std::uint8_t { cpu, cuda, meta };
std::string_view to_string(DeviceKind kind);

/// An in-order queue of work on a device. The CPU runs everything at once and has one.
struct Stream {
  void* native = nullptr;
};

/// A small number of bytes that come to the host while it goes on, again and again.
class HostRead {
 public:
  virtual ~HostRead() = default;
  /// Queues a copy of what `device` points to behind everything launched so far.
  virtual void start(const void* device) = 0;
  /// Waits for that copy, not for what was launched after it. The bytes stay until the next
  /// start(). DeviceError if something before the copy failed.
  virtual std::span<const std::byte> wait() = 0;
};

/// Work of a queue that was recorded once and is queued again as a whole, with the very operands of
/// its first time.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void launch() = 0;
};

/// Copies between a device and pinned host memory, in an order of their own beside the compute
/// stream. Threads of the host may take turns at it.
class CopyQueue {
 public:
  /// A place in the order of launches, or of copies.
  class Point {
   public:
    virtual ~Point() = default;
  };
  virtual ~CopyQueue() = default;
  /// Host memory for copies, of undefined content, which lives as long as this.
  virtual std::span<std::byte> pin(std::uint64_t bytes) = 0;
  /// Behind everything launched so far. To be called by the thread that launches.
  virtual std::shared_ptr<const Point> launched() = 0;
  /// Copies that are queued from now on begin when the device has come to that point.
  virtual void follow(const Point& point) = 0;
  /// Behind the copies queued so far.
  virtual std::shared_ptr<const Point> queued() = 0;
  /// Launches from now on begin when the device has come to that point of a queue's copies. To be
  /// called by the thread that launches, and not while launches are recorded.
  virtual void hold_launches(const Point& point) = 0;
  virtual void to_host(void* pinned, const void* device, std::uint64_t bytes) = 0;
  virtual void to_device(void* device, const void* pinned, std::uint64_t bytes) = 0;
  /// Waits for the copies queued so far, and so for what they follow; not for later launches.
  /// DeviceError if something before them failed.
  virtual void finish() = 0;
};

/// What a backend provides underneath the arena. The CPU maps pages on demand, CUDA takes one slab,
/// meta answers with addresses that nobody may touch.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;
  virtual DeviceKind kind() const = 0;
  /// Address of an arena of `capacity_bytes`; kept until destruction. DeviceError if there is none.
  virtual void* reserve(std::uint64_t capacity_bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::uint64_t bytes) = 0;
  virtual void copy_from_host(void* device, const void* host, std::uint64_t bytes) = 0;
  virtual void copy_on_device(void* to, const void* from, std::uint64_t bytes) = 0;
  /// Memory for `bytes` on the host, which a queue can write. It must not outlive this; without a
  /// queue the copy is done when start() returns.
  virtual std::unique_ptr<HostRead> make_host_read(std::uint64_t bytes);
  /// It must not outlive this; without a queue copies are done at once.
  virtual std::unique_ptr<CopyQueue> make_copy_queue();
  /// An id for join_group(), where a library connects devices. DeviceError without one.
  virtual DeviceGroupId new_group_id();
  /// As member `rank` of `size`; waits for the others. It must not outlive this.
  virtual std::unique_ptr<DeviceGroup> join_group(const DeviceGroupId& id, int rank, int size);
  /// The queue of launches and copies; without one, everything is done when the call returns.
  virtual Stream compute_stream() { return {}; }
  /// True for a queue that can record. Between begin_recording() and end_recording() launches, and
  /// copies on the device, are recorded instead of queued; the host must neither wait nor copy.
  virtual bool can_record() const { return false; }
  virtual void begin_recording();
  /// What was recorded. DeviceError when something in between cannot be recorded.
  virtual std::unique_ptr<RecordedWork> end_recording();
  /// Waits until all of that queue is done. DeviceError if something in it failed.
  virtual void synchronize() {}
};

/// Owns an arena and its ledger. Not thread-safe: only the thread that runs the step allocates and
/// releases, at program points that the recipe alone determines. Must outlive its tensors.
class Device {
 public:
  Device(std::unique_ptr<MemoryBackend> backend, std::uint64_t capacity_bytes);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return backend_->kind(); }
  bool is_meta() const { return kind() == DeviceKind::meta; }

  /// A new contiguous tensor with undefined content. DoesNotFitError, with the ledger's state, when
  /// the arena has no such block. `tag` names the tensor in traces and must be the same on every
  /// device.
  Tensor allocate(const Shape& shape, DType dtype, Category category, std::string_view tag);

  /// Takes and releases again what the ledger noted once, at the same addresses, for work that is
  /// queued again with these. InternalError, naming the first difference, when the addresses are
  /// others.
  void repeat(std::span<const AllocationEvent> events);

  /// Copies of a contiguous tensor, in stream order; nothing happens on meta (host is left as it
  /// is). The first waits for its result; after the second `host` may be used again at once.
  void copy_to_host(std::span<std::byte> host, const Tensor& tensor) const;
  void copy_from_host(const Tensor& tensor, std::span<const std::byte> host) const;
  /// For the bytes of contiguous tensors of this size. It must not outlive the device.
  std::unique_ptr<HostRead> make_host_read(std::uint64_t bytes) const {
    return backend_->make_host_read(bytes);
  }
  /// It must not outlive the device.
  std::unique_ptr<CopyQueue> make_copy_queue() const { return backend_->make_copy_queue(); }
  /// Copies a contiguous tensor of this device onto another of the same byte size, in stream order.
  void copy(const Tensor& from, const Tensor& to) const;

  /// True when a launch returns before its work is done.
  bool runs_behind() const { return compute_stream_.native != nullptr; }
  /// Waits for everything launched so far.
  void synchronize() const { backend_->synchronize(); }

  /// What kernels of a backend may know of their own device beyond this interface.
  MemoryBackend& backend() const { return *backend_; }

  MemoryLedger& ledger() { return ledger_; }
  const MemoryLedger& ledger() const { return ledger_; }
  /// One past the highest arena byte ever in use: what the process really touches.
  std::uint64_t arena_extent_bytes() const { return space_.extent(); }
  std::uint64_t capacity_bytes() const { return space_.capacity(); }
  Stream& compute_stream() { return compute_stream_; }

 private:
  friend class Storage;
  void release(const Storage& storage);

  std::unique_ptr<MemoryBackend> backend_;
  AddressSpace space_;
  std::byte* base_;
  MemoryLedger ledger_;
  Stream compute_stream_;
};

/// RAM of this machine: pages appear when first touched.
std::unique_ptr<MemoryBackend> make_cpu_memory();
/// No memory at all: allocation is bookkeeping only.
std::unique_ptr<MemoryBackend> make_meta_memory();

/// Physical memory of this machine in bytes, limited by the cgroup if there is one.
std::uint64_t physical_memory_bytes();

}  // namespace llmtrain
