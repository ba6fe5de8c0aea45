// Products of codes on the ordinary arithmetic units: right, and slow.
#include "kernels/code_matmul.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/matmul_plain.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr unsigned kSide = 16;

/// A thread has an element of c, whose sum is in ascending order.
template <class C>
__global__ void __launch_bounds__(kSide* kSide)
    code_matmul_kernel(Rows<const std::uint8_t> a, Rows<const std::uint8_t> b, Rows<C> c,
                       const float* a_scale_inv, const float* b_scale_inv, const C* bias,
                       const float* wide_bias, NumberFormat a_format, NumberFormat b_format,
                       bool accumulate, std::int64_t k) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSide + threadIdx.x / kSide;
  const std::int64_t j = std::int64_t{blockIdx.y} * kSide + threadIdx.x % kSide;
  float sum = 0;
  for (std::int64_t p = 0; p < k; ++p) {
    sum += decode(a_format, a.row(i)[p]) * decode(b_format, b.row(j)[p]);
  }
  float result = sum * (*a_scale_inv * *b_scale_inv);
  if (bias != nullptr) result += widen(bias[j]);
  if (wide_bias != nullptr) result += wide_bias[j];
  C& to = c.row(i)[j];
  to = narrow<C>(accumulate ? widen(to) + result : result);
}

template <class C>
void multiply(const KernelCtx& ctx, const CodeMatmul& mm) {
  const bool wide = mm.bias.dtype == DType::f32 && mm.c.dtype != DType::f32;
  static_assert(CodeMatmul::kUnit % kSide == 0);
  launch_grid(ctx,
              {{static_cast<unsigned>(mm.m() / kSide), static_cast<unsigned>(mm.n() / kSide)},
               kSide * kSide},
              code_matmul_kernel<C>, Rows<const std::uint8_t>(mm.a), Rows<const std::uint8_t>(mm.b),
              Rows<C>(mm.c), mm.a_scale_inv.as<const float>(), mm.b_scale_inv.as<const float>(),
              wide ? nullptr : mm.bias.as<const C>(), wide ? mm.bias.as<const float>() : nullptr,
              mm.a_format, mm.b_format, mm.accumulate, mm.k());
}

}  // namespace

void plain_code_matmul(const KernelCtx& ctx, const CodeMatmul& mm) {
  mm.c.dtype == DType::bf16 ? multiply<bf16>(ctx, mm) : multiply<float>(ctx, mm);
}

}  // namespace llmtrain::kernels::cuda
