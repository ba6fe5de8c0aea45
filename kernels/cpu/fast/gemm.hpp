#pragma once
/// The matrix product.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels::fast {

/// A non-empty product of FP32, bf16 or fp16 operands in `workspace`, of its workspace_bytes().
/// Each element of c is summed in FP32 over pieces of k, whose length depends on k and the
/// instruction set alone, in order, so that the result does not depend on the number of threads; a
/// bf16 or fp16 c is rounded once.
void gemm(const Matmul& mm, int threads, void* workspace);

/// True where the processor multiplies bf16 itself; elsewhere its products run in FP32.
bool gemm_multiplies_bf16();

}  // namespace llmtrain::kernels::fast
