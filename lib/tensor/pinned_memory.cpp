#include "lib/tensor/pinned_memory.hpp"

#include "lib/tensor/host_memory.hpp"

namespace llmtrain {

namespace {

class PinnedMemory final : public HostMemory {
 public:
  explicit PinnedMemory(CopyQueue& queue) : queue_(&queue) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  void* reserve(std::uint64_t capacity_bytes) override {
    return queue_->pin(capacity_bytes).data();
  }

 private:
  CopyQueue* queue_;
};

}  // namespace

std::unique_ptr<MemoryBackend> make_pinned_memory(CopyQueue& queue) {
  return std::make_unique<PinnedMemory>(queue);
}

}  // namespace llmtrain
