#pragma once
/// Parts of a step whose launches are recorded once and queued as a whole from then on (CUDA
/// graphs), so that the host no longer makes each of them.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
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

  /// How many collectives this rank has begun with others.
  using CountCollectives = std::function<std::uint64_t()>;
  /// `enabled` false: every part is launched anew each time.
  RecordedParts(Device& device, bool enabled, CountCollectives collectives)
      : device_(&device), enabled_(enabled), collectives_(std::move(collectives)) {}

  /// Runs `launches` the first time, so that libraries choose and load what they need; records it
  /// the second time; and queues the recording ever after. A part with collectives, in which the
  /// host exchanges what kernels have written, is launched anew each time. `launches` must leave
  /// nothing allocated that it has allocated, and may read what changes its place only if that is
  /// in `inputs`. InternalError when an input or an allocation of a recording has another address
  /// now.
  void run(Part part, const std::function<void()>& launches,
           const std::vector<const void*>& inputs = {});

  /// Whether the part had collectives so far, and so is not recorded whatever the device can.
  bool has_collectives(Part part) const {
    return recorded_[static_cast<std::size_t>(part)].has_collectives;
  }

 private:
  struct Recorded {
    std::int64_t runs = 0;
    bool has_collectives = false;
    std::vector<const void*> inputs;
    std::vector<AllocationEvent> allocations;
    std::unique_ptr<RecordedWork> work;
  };
  void record(Recorded& recorded, const std::function<void()>& launches);

  Device* device_;
  bool enabled_;
  CountCollectives collectives_;
  std::array<Recorded, kNumParts> recorded_;
};

}  // namespace llmtrain::engine
