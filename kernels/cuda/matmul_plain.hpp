#pragma once
/// Products and vectors in our own kernels.

#include "kernels/code_matmul.hpp"

namespace llmtrain::kernels::cuda {

/// Every product that Matmul allows, without tensor cores and without workspace: each element of c
/// is one sum over k in ascending order, with fused multiply-adds.
void plain_matmul(const KernelCtx& ctx, const Matmul& mm);
/// Every product that CodeMatmul allows, likewise.
void plain_code_matmul(const KernelCtx& ctx, const CodeMatmul& mm);

/// to[i] = from[i], rounded to the dtype of `to`: FP32 to FP32, BF16 or FP16, or each of
/// the latter two to itself. For
/// libraries that want a bias in another dtype or at a better address.
void copy_vector(const KernelCtx& ctx, const View& from, const View& to);

/// Fills memory with numbers between -2 and 2 of either sign, as BF16, FP16 and FP32 alike:
/// operands of products that are only timed. (Equal or zero operands draw less power and so run
/// faster.)
void fill_for_timing(const KernelCtx& ctx, const View& bytes);
/// The same with codes of e4m3 and e5m2 alike, none of which is a NaN.
void fill_codes_for_timing(const KernelCtx& ctx, const View& bytes);

}  // namespace llmtrain::kernels::cuda
