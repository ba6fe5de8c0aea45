#include "lib/tensor/pinned_memory.hpp"

#include <cstring>

namespace llmtrain {

namespace {

class PinnedMemory final : public MemoryBackend {
 public:
  explicit PinnedMemory(CopyQueue& queue) : queue_(&queue) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  void* reserve(std::uint64_t capacity_bytes) override {
    return queue_->pin(capacity_bytes).data();
  }
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override {
    std::memmove(to, from, bytes);
  }

 private:
  CopyQueue* queue_;
};

}  // namespace

std::unique_ptr<MemoryBackend> make_pinned_memory(CopyQueue& queue) {
  return std::make_unique<PinnedMemory>(queue);
}

}  // namespace llmtrain
