#pragma once
/// What the routers of a model's experts did in each step, over all ranks.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/models/decoder.hpp"

namespace llmtrain::engine {

/// Of each block with experts, in their order.
struct RouterOutcome {
  std::vector<std::vector<double>> choices;  // how many of each expert
  std::vector<double> kept;                  // how many had room; empty: all
  std::vector<double> balance, z;            // kernels::RouterLosses, summed over rows
};

class RouterReport {
 public:
  /// Steps in flight.
  static constexpr int kSlots = 2;
  /// Of a decoder with counters. Both outlive this.
  RouterReport(Device& device, const models::Decoder& decoder);

  /// Before a step's first micro-batch.
  void clear(const kernels::KernelCtx& ctx) const;
  /// Makes the counts those of all ranks. Collective over the world.
  void sum(const Mesh& mesh) const;
  /// Queues a copy to the host, and waits for it.
  void start(int slot);
  RouterOutcome wait(int slot);

 private:
  const models::Decoder* decoder_;
  struct Reads {
    std::unique_ptr<HostRead> choices, losses, kept;  // the last where room is limited
  };
  std::array<Reads, kSlots> reads_;
};

}  // namespace llmtrain::engine
