#include "lib/tensor/device.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <list>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/tensor/host_memory.hpp"

namespace llmtrain {

std::string_view to_string(DeviceKind kind) {
  constexpr std::array<std::string_view, 3> kNames{"cpu", "cuda", "meta"};
  return kNames[static_cast<int>(kind)];
}

namespace {

class ImmediateRead final : public HostRead {
 public:
  ImmediateRead(MemoryBackend& memory, std::uint64_t bytes) : memory_(&memory), bytes_(bytes) {}
  void start(const void* device) override {
    memory_->copy_to_host(bytes_.data(), device, bytes_.size());
  }
  std::span<const std::byte> wait() override { return bytes_; }

 private:
  MemoryBackend* memory_;
  std::vector<std::byte> bytes_;
};

class ImmediateCopies final : public CopyQueue {
 public:
  explicit ImmediateCopies(MemoryBackend& memory) : memory_(&memory) {}
  std::span<std::byte> pin(std::uint64_t bytes) override {
    return pinned_.emplace_back(static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<const Point> launched() override { return std::make_shared<const Point>(); }
  void follow(const Point&) override {}
  std::shared_ptr<const Point> queued() override { return std::make_shared<const Point>(); }
  void hold_launches(const Point&) override {}
  void to_host(void* pinned, const void* device, std::uint64_t bytes) override {
    memory_->copy_to_host(pinned, device, bytes);
  }
  void to_device(void* device, const void* pinned, std::uint64_t bytes) override {
    memory_->copy_from_host(device, pinned, bytes);
  }
  void finish() override {}

 private:
  MemoryBackend* memory_;
  std::list<std::vector<std::byte>> pinned_;
};

class CpuMemory final : public HostMemory {
 public:
  ~CpuMemory() override {
    if (base_ != nullptr) ::munmap(base_, capacity_);
  }
  DeviceKind kind() const override { return DeviceKind::cpu; }
  void* reserve(std::uint64_t capacity_bytes) override {
    void* base = ::mmap(nullptr, capacity_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require<DeviceError>(base != MAP_FAILED,
                         "cannot reserve {} of address space: {}; lower run.memory_limit",
                         format_bytes(capacity_bytes), std::strerror(errno));
    ::madvise(base, capacity_bytes, MADV_HUGEPAGE);
    base_ = base;
    capacity_ = capacity_bytes;
    return base;
  }

 private:
  void* base_ = nullptr;
  std::uint64_t capacity_ = 0;
};

class MetaMemory final : public MemoryBackend {
 public:
  DeviceKind kind() const override { return DeviceKind::meta; }
  void* reserve(std::uint64_t) override {
    // Non-null so that operands count as present; non-canonical so that a read faults. Arenas of a
    // plan do not lie in each other: kernels whose operands are of several ask.
    static std::atomic<std::uintptr_t> made = 0;
    constexpr int kArenaBits = 51, kArenas = 32;
    return reinterpret_cast<void*>((std::uintptr_t{1} << 56) | (made++ % kArenas) << kArenaBits);
  }
  void copy_to_host(void*, const void*, std::uint64_t) override {}
  void copy_from_host(void*, const void*, std::uint64_t) override {}
  void copy_on_device(void*, const void*, std::uint64_t) override {}
};

}  // namespace

std::unique_ptr<HostRead> MemoryBackend::make_host_read(std::uint64_t bytes) {
  return std::make_unique<ImmediateRead>(*this, bytes);
}

std::unique_ptr<CopyQueue> MemoryBackend::make_copy_queue() {
  return std::make_unique<ImmediateCopies>(*this);
}

DeviceGroupId MemoryBackend::new_group_id() {
  fail<DeviceError>("no library connects devices of {}", to_string(kind()));
}

std::unique_ptr<DeviceGroup> MemoryBackend::join_group(const DeviceGroupId&, int, int) {
  fail<DeviceError>("no library connects devices of {}", to_string(kind()));
}

void MemoryBackend::begin_recording() { fail("{} records no work", to_string(kind())); }
std::unique_ptr<RecordedWork> MemoryBackend::end_recording() {
  fail("{} records no work", to_string(kind()));
}

std::unique_ptr<MemoryBackend> make_cpu_memory() { return std::make_unique<CpuMemory>(); }
std::unique_ptr<MemoryBackend> make_meta_memory() { return std::make_unique<MetaMemory>(); }

Device::Device(std::unique_ptr<MemoryBackend> backend, std::uint64_t capacity_bytes)
    : backend_(std::move(backend)),
      space_(capacity_bytes),
      base_(static_cast<std::byte*>(backend_->reserve(capacity_bytes))),
      compute_stream_(backend_->compute_stream()) {}

Device::~Device() = default;

Tensor Device::allocate(const Shape& shape, DType dtype, Category category, std::string_view tag) {
  const std::uint64_t bytes =
      AddressSpace::round_up(static_cast<std::uint64_t>(shape.numel()) * size_of(dtype));
  const auto offset = space_.take(bytes);
  require<DoesNotFitError>(
      offset.has_value(),
      "{} memory: {} for {} ({}) does not fit: {} of {} held, largest free block {}",
      to_string(kind()), format_bytes(bytes), tag, to_string(category),
      format_bytes(ledger_.held_bytes()), format_bytes(space_.capacity()),
      format_bytes(space_.largest_free_block()));
  ledger_.allocated(category, tag, bytes, *offset);
  void* data = base_ + *offset;
  return Tensor(std::make_shared<Storage>(*this, data, *offset, bytes, category, std::string(tag)),
                View{.data = data, .dtype = dtype, .shape = shape, .row_stride = shape.cols()});
}

void Device::release(const Storage& storage) {
  space_.give_back(storage.offset(), storage.bytes());
  ledger_.released(storage.category(), storage.tag(), storage.bytes(), storage.offset());
}

void Device::repeat(std::span<const AllocationEvent> events) {
  for (const AllocationEvent& event : events) {
    if (event.is_free) {
      space_.give_back(event.offset, event.bytes);
      ledger_.released(event.category, event.tag, event.bytes, event.offset);
      continue;
    }
    const auto offset = space_.take(event.bytes);
    require(offset == event.offset, "work that is repeated has no {}: its place is taken",
            to_string(event));
    ledger_.allocated(event.category, event.tag, event.bytes, event.offset);
  }
}

void Device::copy_to_host(std::span<std::byte> host, const Tensor& tensor) const {
  require(tensor.view().contiguous() && host.size() == tensor.view().bytes(),
          "copy to host of {}: {} bytes given", to_string(tensor.shape()), host.size());
  backend_->copy_to_host(host.data(), tensor.view().data, host.size());
}

void Device::copy_from_host(const Tensor& tensor, std::span<const std::byte> host) const {
  require(tensor.view().contiguous() && host.size() == tensor.view().bytes(),
          "copy from host to {}: {} bytes given", to_string(tensor.shape()), host.size());
  backend_->copy_from_host(tensor.view().data, host.data(), host.size());
}

void Device::copy(const Tensor& from, const Tensor& to) const {
  require(from.view().contiguous() && to.view().contiguous() &&
              from.view().bytes() == to.view().bytes(),
          "copy of {} {} to {} {}", to_string(from.dtype()), to_string(from.shape()),
          to_string(to.dtype()), to_string(to.shape()));
  backend_->copy_on_device(to.view().data, from.view().data, from.view().bytes());
}

std::uint64_t physical_memory_bytes() {
  const auto total = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                     static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t limit = 0;
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");
  return cgroup >> limit ? std::min(total, limit) : total;
}

}  // namespace llmtrain
