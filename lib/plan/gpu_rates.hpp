#pragma once
/// What a GPU reaches, beside what its data sheet promises.

#include "kernels/backend.hpp"

namespace llmtrain::plan {

/// A copy on a device, bytes read and written.
struct CopyRate {
  std::uint64_t copied_bytes = 0;
  double bytes_per_second = 0;
};

/// Of the largest size that was measured: one that a GPU needs a millisecond for, or the most that
/// an arena of `arena_bytes`, of which nothing is taken, has room for (512 MiB at most).
CopyRate measure_copy(Device& device, std::uint64_t arena_bytes);

/// Of the largest sizes that were measured: those that a GPU needs a millisecond for, or the most
/// that is tried.
struct GpuRates {
  CopyRate copy;
  /// A product of square matrices of bf16, `side` x `side`, of random numbers.
  std::int64_t side = 0;
  double bf16_flops = 0;
};

/// Means of several launches behind one another. Takes at most 1.5 GiB of the GPU while it runs.
/// DeviceError where the device cannot be used, DoesNotFitError where others have its memory.
GpuRates measure_gpu(const kernels::Backend& backend, int device);

}  // namespace llmtrain::plan
