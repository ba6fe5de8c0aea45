#pragma once
/// Parts of a step whose launches are recorded once and queued as a whole from then on (CUDA
/// graphs), so that the host no longer makes each of them.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/tensor/device.hpp"

namespace llmtrain::engine {

/// What may change between two runs of a part is what its launches find in device memory: their
/// operands are those of the recording, and so are the addresses of everything that the part
/// allocates. That these repeat is checked every time.
class RecordedParts {
 public:
  /// Gradients to zero; a micro-batch, forward and backward; clipping and updates.
  enum class Part : std::uint8_t { start, micro_step, update };
  static constexpr int kNumParts = 3;

  /// `enabled` false: every part is launched anew each time.
  RecordedParts(Device& device, bool enabled) : device_(&device), enabled_(enabled) {}

  /// Runs `launches` the first time, so that libraries choose and load what they need; records it
  /// the second time; and queues the recording ever after. `launches` must leave nothing allocated
  /// that it has allocated, and may read what changes its place only if that is in `inputs`.
  /// InternalError when an input or an allocation of a recording has another address now.
  void run(Part part, const std::function<void()>& launches,
           const std::vector<const void*>& inputs = {});

 private:
  struct Recorded {
    std::int64_t runs = 0;
    std::vector<const void*> inputs;
    std::vector<AllocationEvent> allocations;
    std::unique_ptr<RecordedWork> work;
  };
  void record(Recorded& recorded, const std::function<void()>& launches);

  Device* device_;
  bool enabled_;
  std::array<Recorded, kNumParts> recorded_;
};

}  // namespace llmtrain::engine
