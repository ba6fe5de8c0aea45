#pragma once
/// Own FP32 matrix product, for processors where oneDNN's one takes memory that no plan knows of.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels::fast {

/// Bytes of scratch that gemm() wants; at most the library's share of matmul_workspace().
std::uint64_t gemm_scratch_bytes(int threads);

/// A non-empty product of FP32 operands. Each element of c is summed over k in pieces of fixed
/// length and in order, so that the result does not depend on the number of threads.
void gemm(const Matmul& mm, int threads, void* scratch);

}  // namespace llmtrain::kernels::fast
