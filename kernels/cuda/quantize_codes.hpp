#pragma once
/// What a product of codes asks for before it: the largest magnitude of a tensor, and its codes, as
/// they are and transposed, at the speed of memory.

#include "kernels/quantize/quantize.hpp"

namespace llmtrain::kernels::cuda {

/// Queues the amax of one block that is all of x, with accesses of 16 bytes; false, having done
/// nothing, where x is no such matrix.
bool amax_of_tensor(const KernelCtx& ctx, const BlockAmax& op);

/// Queues codes of e4m3 and e5m2 of one scale, rounded to nearest, without y: codes, codes
/// transposed, or both from one reading of x. False, having done nothing, for anything else, and
/// where sizes or addresses do not allow accesses of 16 bytes.
bool quantize_codes(const KernelCtx& ctx, const Quantize& op);

}  // namespace llmtrain::kernels::cuda
