#pragma once
/// The arithmetic peak of this processor: multiply-adds between registers, no memory.

#include "lib/tensor/dtype.hpp"

namespace llmtrain::plan {

inline constexpr double kPeakSeconds = 0.1;

/// FLOP per second (a multiply-add counts two) that `threads` threads reach together in chains of
/// the widest multiply-add instruction for products of this type: fp32, or bf16 summed in fp32.
/// Without bf16 instructions bf16 products run in fp32 and have its peak. The best of the windows
/// of about a millisecond that fit into `seconds`, so that other work on the machine lowers it
/// less.
double measure_fma_peak(DType compute, int threads, double seconds = kPeakSeconds);

}  // namespace llmtrain::plan
