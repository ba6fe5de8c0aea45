#pragma once
/// Matrix products by oneDNN: the only door to that library.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels::fast {

/// True where the processor multiplies bf16 itself. Elsewhere oneDNN has no bf16 product or one at
/// a third of the speed of fp32.
bool onednn_multiplies_bf16();

/// Runs a non-empty product on `threads` threads, or returns false, having done nothing, when
/// oneDNN would want more than `scratch_bytes` of scratch memory, or memory of its own. Equal
/// operands give equal bits as long as thread count and instruction set are equal. DeviceError when
/// oneDNN fails.
bool onednn_matmul(const Matmul& mm, int threads, void* scratch, std::uint64_t scratch_bytes);

}  // namespace llmtrain::kernels::fast
