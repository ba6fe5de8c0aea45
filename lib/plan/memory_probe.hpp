#pragma once
/// The bandwidth of this machine's memory, next to which kernels that mostly move bytes are judged.

#include <memory>

#include "lib/tensor/device.hpp"

namespace llmtrain::plan {

/// A block of fp32 several times as large as the last-level cache, which threads scale in place.
class MemoryProbe {
 public:
  explicit MemoryProbe(int threads);

  /// Bytes read and written per second by one pass of all threads over the block.
  double pass_rate();
  /// Median of a few passes: some tens of milliseconds.
  double rate();

 private:
  int threads_;
  std::unique_ptr<Device> device_;
  Tensor block_;
};

}  // namespace llmtrain::plan
