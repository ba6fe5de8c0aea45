#pragma once
/// The element types of the fast kernels, and how they hand on what they do not do themselves.

#include "kernels/kernel.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

template <class K>
void run_reference(const KernelCtx& ctx, const K& kernel, const View& workspace) {
  cpu_reference_table().find(K::name)(ctx, &kernel, workspace);
}

/// Calls f.operator()<T>() for the element type of a fast kernel: fp32, bf16 or fp16.
template <class F>
void with_fast_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      fail("no fast CPU kernel computes in {}", to_string(dtype));
  }
}

}  // namespace llmtrain::kernels
