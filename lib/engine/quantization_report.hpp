#pragma once
/// What quantizing did to the operands of a step's products, over all ranks.

#include <array>
#include <memory>

#include "lib/mesh/mesh.hpp"
#include "lib/param/quantized_layers.hpp"

namespace llmtrain::engine {

/// Of inputs, weights and gradients of outputs (LinearOperand), over all quantized layers.
struct QuantizationOutcome {
  /// Largest magnitude.
  std::array<double, kLinearOperands> amax{};
  /// Numbers that did not fit into their format and became its largest.
  std::array<double, kLinearOperands> saturated{};
};

class QuantizationReport {
 public:
  /// Steps in flight.
  static constexpr int kSlots = 2;
  /// `layers` outlives this.
  QuantizationReport(const kernels::KernelCtx& ctx, const QuantizedLayers& layers);

  /// Before a step's first micro-batch.
  void begin_step(const kernels::KernelCtx& ctx) const;
  /// Behind the last: what the layers gathered, and the report, become those of all ranks.
  /// Collective over the world.
  void join(const kernels::KernelCtx& ctx, const Mesh& mesh) const;
  /// Queues a copy to the host, and waits for it.
  void start(int slot);
  QuantizationOutcome wait(int slot);

 private:
  const QuantizedLayers* layers_;
  Tensor amax_, saturated_;  // FP32 and FP64 [kLinearOperands]
  struct Reads {
    std::unique_ptr<HostRead> amax, saturated;
  };
  std::array<Reads, kSlots> reads_;
};

}  // namespace llmtrain::engine
