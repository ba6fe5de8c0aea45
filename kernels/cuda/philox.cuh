#pragma once
/// Words of Philox on the device.

#include <cstdint>

#include "lib/base/philox.hpp"

namespace llmtrain::kernels::cuda {

/// words[i] without an array in memory, which an index at run time would need.
__device__ __forceinline__ std::uint32_t word_of(const PhiloxWords& words, std::uint64_t i) {
  return i < 2 ? (i == 0 ? words[0] : words[1]) : (i == 2 ? words[2] : words[3]);
}

}  // namespace llmtrain::kernels::cuda
