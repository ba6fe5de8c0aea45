#pragma once
/// Whether all rows that went to experts on other ranks had room there (parallelism.ep_room).

#include <array>
#include <memory>
#include <span>

#include "lib/models/decoder.hpp"

namespace llmtrain::engine {

/// Devices note rows without a slot, whose NaN keeps the step's update from being applied; the host
/// learns of them when it reads the step.
class ExpertRoom {
 public:
  /// Steps in flight.
  static constexpr int kSlots = 2;
  /// Of a decoder that notes it (Decoder::router_needed). Both and the mesh outlive this.
  ExpertRoom(Device& device, const models::Decoder& decoder, const Mesh& mesh);

  /// Before a step or an evaluation.
  void clear(const kernels::KernelCtx& ctx) const;
  /// The most that any rank needed. Collective over the world.
  void join_all() const;
  /// Queues a copy to the host; and waits for it: DoesNotFitError with what would have been enough,
  /// on all ranks alike.
  void start(int slot);
  void check(int slot);
  /// All of it at once, of an evaluation.
  void check_evaluation() const;

 private:
  void require_enough(std::span<const std::byte> needed) const;

  const Tensor* needed_;
  const Mesh* mesh_;
  std::array<std::unique_ptr<HostRead>, kSlots> reads_;
};

}  // namespace llmtrain::engine
