#pragma once
/// The two kernels for products of experts. Neither needs workspace; both add in an order that
/// depends on nothing but the number of terms.

#include "kernels/experts.hpp"

namespace llmtrain::kernels::cuda {

/// fp64 and fp32 on the ordinary arithmetic units, with the bits that plain_matmul gives each
/// expert's rows.
void plain_grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op);

/// bf16, fp16, and fp32 rounded to TF32, on tensor cores (mma.sync).
void tensor_grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op);

}  // namespace llmtrain::kernels::cuda
