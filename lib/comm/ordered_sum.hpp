#pragma once
/// Element-wise reductions of several ranks' data in an order that only their number decides.

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/comm/communicator.hpp"

namespace llmtrain {

/// out[i] = reduction of terms[0][i], terms[1][i], ... The sum joins neighbours by pairs, level by
/// level; the last of an odd level passes unchanged. fp64, fp32, i64 and i32 in their own type;
/// bf16 and fp16 in FP32, rounded to nearest even once. `out` may be one of the terms. Max and min
/// of a NaN and a number are NaN. InternalError for other types.
void reduce_in_order(std::span<const std::byte* const> terms, std::byte* out, std::int64_t count,
                     DType dtype, ReduceOp op);

}  // namespace llmtrain
