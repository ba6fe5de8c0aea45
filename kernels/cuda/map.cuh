#pragma once
/// Element-wise loops over strided rows: a functor is called once per pack of V neighbouring
/// elements of a row.

#include <algorithm>

#include "kernels/cuda/element.cuh"

namespace llmtrain::kernels::cuda {

inline constexpr int kMapThreads = 256;
/// Blocks of a map; further elements are taken in further rounds, of which the small operands of an
/// emulated GPU shall have some, too.
#ifdef LLMTRAIN_CUDA_EMULATION
inline constexpr std::int64_t kMapBlocks = 2;
#else
inline constexpr std::int64_t kMapBlocks = 4096;
#endif

/// i / n of two that are not negative. Quotients of 64 bits take as long as what a pack is for.
__device__ __forceinline__ std::int64_t divide(std::int64_t i, std::int64_t n) {
  if (((i | n) >> 32) != 0) return i / n;
  return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(n);
}

/// f(row, first column of the pack); F::kWidth elements are a pack.
template <class F>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(F f, std::int64_t packs, std::int64_t packs_per_row) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kMapThreads) {
    const std::int64_t row = packs == packs_per_row ? 0 : divide(i, packs_per_row);
    f(row, (i - row * packs_per_row) * F::kWidth);
  }
}

/// The operands of a map, for the choice of its packs.
class MapShape {
 public:
  /// Rows and columns are those of the first view; absent views do not count.
  template <class... Views>
  explicit MapShape(const View& first, const Views&... others) {
    const bool dense = first.contiguous() && (... && (!others.defined() || others.contiguous()));
    rows = dense ? 1 : first.rows();
    cols = dense ? first.numel() : first.cols();
    std::size_t widest = size_of(first.dtype);
    ((widest = others.defined() ? std::max(widest, size_of(others.dtype)) : widest), ...);
    width = static_cast<int>(16 / widest);
    const auto fits = [&](const View& view) {
      if (!view.defined()) return true;
      const std::size_t bytes = static_cast<std::size_t>(width) * size_of(view.dtype);
      return dense ? reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0
                   : rows_aligned(view, bytes);
    };
    if (cols % width != 0 || !fits(first) || !(... && fits(others))) width = 1;
  }
  std::int64_t rows = 0, cols = 0;
  /// Elements of a pack: those that 16 bytes hold of the widest operand, or one.
  int width = 1;
};

/// Queues f over all packs. F::kWidth must be shape.width.
template <class F>
void map(const KernelCtx& ctx, const MapShape& shape, const F& f) {
  const std::int64_t per_row = shape.cols / F::kWidth;
  const std::int64_t packs = shape.rows * per_row;
  const auto blocks = static_cast<unsigned>(std::min(kMapBlocks, ceil_div(packs, kMapThreads)));
  launch_grid(ctx, {blocks, kMapThreads}, map_kernel<F>, f, packs, per_row);
}

/// Calls f.operator()<V>() for the width of a pack: 1, or what 16 bytes hold.
template <class F>
void with_width(int width, const F& f) {
  switch (width) {
    case 8:
      return f.template operator()<8>();
    case 4:
      return f.template operator()<4>();
    case 2:
      return f.template operator()<2>();
    default:
      return f.template operator()<1>();
  }
}

}  // namespace llmtrain::kernels::cuda
