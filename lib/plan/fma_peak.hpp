#pragma once
/// The arithmetic peak of this processor: multiply-adds between registers, no memory.

#include <span>

#include "lib/tensor/dtype.hpp"

namespace llmtrain::plan {

inline constexpr double kPeakSeconds = 0.1;

/// FLOP per second (a multiply-add counts two) that threads reach together in chains of the widest
/// multiply-add instruction for products of a type.
struct FmaRate {
  /// In the best of the windows of about a millisecond: what the processor can do.
  double peak = 0;
  /// In all windows together: what is left of it when others use the machine too.
  double mean = 0;
};

struct FmaWindow {
  double flops = 0, seconds = 0;
};
FmaRate rate_of(std::span<const FmaWindow> windows);

/// fp32, or bf16 or fp16 summed in fp32: without bf16 instructions bf16 products run in fp32, at
/// its rate, and fp16 products always do.
FmaRate measure_fma_rate(DType compute, int threads, double seconds = kPeakSeconds);

}  // namespace llmtrain::plan
