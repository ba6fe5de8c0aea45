#pragma once
/// What a GPU reaches, beside what its data sheet promises.

#include "kernels/backend.hpp"

namespace llmtrain::plan {

/// Of the largest sizes that were measured: those that a GPU needs a millisecond for, or the most
/// that is tried.
struct GpuRates {
  /// A copy on the device, bytes read and written.
  std::uint64_t copied_bytes = 0;
  double bytes_per_second = 0;
  /// A product of square matrices of bf16, `side` x `side`, of random numbers.
  std::int64_t side = 0;
  double bf16_flops = 0;
};

/// Means of several launches behind one another. Takes at most 1.5 GiB of the GPU while it runs.
/// DeviceError where the device cannot be used, DoesNotFitError where others have its memory.
GpuRates measure_gpu(const kernels::Backend& backend, int device);

}  // namespace llmtrain::plan
