#pragma once
/// The arithmetic peak of this processor: multiply-adds between registers, no memory.

#include "lib/tensor/dtype.hpp"

namespace llmtrain::plan {

/// FLOP per second (a multiply-add counts two) that `threads` threads reach together in chains of
/// the widest multiply-add instruction for products of this type: fp32, or bf16 summed in fp32.
/// Without bf16 instructions bf16 products run in fp32 and have its peak. The best of several short
/// windows, so that other work on the machine does not lower it.
double measure_fma_peak(DType compute, int threads);

/// FLOP per second of fp32 multiply-adds right now, in a window of a quarter of a millisecond. Held
/// against the peak it is the part of the processor that other work and its clock leave to us: on a
/// shared machine it moves by a third within the hour, and what runs moves with it.
double fma_speed_now(int threads);

}  // namespace llmtrain::plan
