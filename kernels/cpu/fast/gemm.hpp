#pragma once
/// Own matrix product, for processors and shapes where oneDNN is slow or takes memory that no plan
/// knows of.

#include "kernels/matmul_workspace.hpp"

namespace llmtrain::kernels::fast {

/// A non-empty product of FP32 or bf16 operands. `workspace` has the layout of its
/// matmul_workspace(), or of that of a product with more terms that it is a piece of. Each element
/// of c is summed in FP32 over pieces of k, whose length depends on k alone, in order, so that the
/// result does not depend on the number of threads; a bf16 c is rounded once.
void gemm(const Matmul& mm, int threads, void* workspace, const MatmulWorkspace& layout);

}  // namespace llmtrain::kernels::fast
