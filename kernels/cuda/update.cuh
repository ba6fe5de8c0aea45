#pragma once
/// Updates of one parameter: a functor is called once per pack of V neighbouring elements.

#include <algorithm>

#include "kernels/cuda/map.cuh"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels::cuda {

/// f over all packs where the decision applies. A thread forms the scalars once.
template <class F>
__global__ void __launch_bounds__(kMapThreads) update_kernel(F f, std::int64_t packs) {
  if (f.decision->apply == 0) return;
  const typename F::Scalars scalars(f.op, *f.decision);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kMapThreads) {
    f(scalars, i * F::kWidth);
  }
}

template <class F>
void launch_update(const KernelCtx& ctx, const F& f) {
  const std::int64_t packs = f.op.to.numel() / F::kWidth;
  const auto blocks = static_cast<unsigned>(std::min(kMapBlocks, ceil_div(packs, kMapThreads)));
  launch_grid(ctx, {blocks, kMapThreads}, update_kernel<F>, f, packs);
}

/// Calls f.operator()<T, V>() for the type of a master or a gradient and the width of a pack.
template <class F>
void with_master_type(DType dtype, int width, const F& f) {
  if (dtype == DType::f64) {
    width == 1 ? f.template operator()<double, 1>() : f.template operator()<double, 2>();
  } else {
    width == 1 ? f.template operator()<float, 1>() : f.template operator()<float, 4>();
  }
}

}  // namespace llmtrain::kernels::cuda
