// Products on the ordinary arithmetic units: fp64, and whatever no library takes.
#include <algorithm>

#include "kernels/cuda/matmul_plain.hpp"
#include "kernels/cuda/plain_tile.cuh"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, class C>
__global__ void __launch_bounds__(plain_tile::kThreads, 2)
    matmul_kernel(plain_tile::Product<T, C> product, std::int64_t tiles_m, std::int64_t tiles_n) {
  constexpr std::int64_t kSize = plain_tile::Tile<Wide<T>>::kSize;
  const TilePlace tile = tile_of(blockIdx.x, tiles_m, tiles_n);
  plain_tile::multiply_tile(product, tile.row * kSize, tile.col * kSize);
}

template <class T, class C>
void multiply(const KernelCtx& ctx, const Matmul& mm) {
  constexpr std::int64_t kSize = plain_tile::Tile<Wide<T>>::kSize;
  plain_tile::Product<T, C> product{};
  product.a = {Rows<const T>(mm.a), mm.m(), mm.k(), !mm.transpose_a};
  product.b = {Rows<const T>(mm.b), mm.n(), mm.k(), mm.transpose_b};
  product.c = Rows<C>(mm.c);
  if (mm.bias.dtype == mm.c.dtype) {
    product.bias = mm.bias.as<const C>();
  } else {
    product.wide_bias = mm.bias.as<const float>();
  }
  product.accumulate = mm.accumulate;
  const std::int64_t tiles_m = ceil_div(mm.m(), kSize), tiles_n = ceil_div(mm.n(), kSize);
  launch_grid(ctx, {static_cast<unsigned>(tiles_m * tiles_n), plain_tile::kThreads},
              matmul_kernel<T, C>, product, tiles_m, tiles_n);
}

constexpr int kVectorThreads = 256;

template <class X, class Y>
__global__ void __launch_bounds__(kVectorThreads) copy_kernel(const X* x, Y* y, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kVectorThreads + threadIdx.x;
  if (i < n) y[i] = narrow<Y>(widen(x[i]));
}

/// Words from a multiplicative hash of their index, of which some bits vary and some are set.
__global__ void __launch_bounds__(kVectorThreads)
    fill_kernel(std::uint32_t* words, std::int64_t n, std::uint32_t vary, std::uint32_t set) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kVectorThreads + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kVectorThreads) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b1u;
    x = (x ^ (x >> 15)) * 0x85ebca77u;
    x ^= x >> 13;
    words[i] = (x & vary) | set;
  }
}

}  // namespace

void plain_matmul(const KernelCtx& ctx, const Matmul& mm) {
  with_type(mm.a.dtype, [&]<class T>() {
    if (mm.c.dtype == mm.a.dtype) return multiply<T, T>(ctx, mm);
    if constexpr (sizeof(T) == 2) multiply<T, float>(ctx, mm);
  });
}

void copy_vector(const KernelCtx& ctx, const View& from, const View& to) {
  const auto blocks = static_cast<unsigned>(ceil_div(from.numel(), kVectorThreads));
  const auto copy = [&]<class X, class Y>(void (*kernel)(const X*, Y*, std::int64_t)) {
    launch_grid(ctx, {blocks, kVectorThreads}, kernel, from.as<const X>(), to.as<Y>(),
                from.numel());
  };
  if (to.dtype != from.dtype && from.dtype != DType::f32) {
    throw InternalError("no CUDA kernel copies such a vector");
  }
  with_type(to.dtype, [&]<class Y>() {
    from.dtype == to.dtype ? copy(copy_kernel<Y, Y>) : copy(copy_kernel<float, Y>);
  });
}

namespace {

void fill(const KernelCtx& ctx, const View& bytes, std::uint32_t vary, std::uint32_t set) {
  constexpr std::int64_t kMaxBlocks = 4096;
  const auto words = static_cast<std::int64_t>(bytes.bytes() / 4);
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, ceil_div(words, kVectorThreads)));
  launch_grid(ctx, {blocks, kVectorThreads}, fill_kernel, bytes.as<std::uint32_t>(), words, vary,
              set);
}

}  // namespace

// Two BF16 numbers a word: signs and mantissas vary, exponents are those of [0.5, 2). As FP16 their
// sizes are in [1.75, 2).
void fill_for_timing(const KernelCtx& ctx, const View& bytes) {
  fill(ctx, bytes, 0x80ff80ffu, 0x3f003f00u);
}

// All bits vary but the exponent's highest.
void fill_codes_for_timing(const KernelCtx& ctx, const View& bytes) {
  fill(ctx, bytes, 0xbfbfbfbfu, 0);
}

}  // namespace llmtrain::kernels::cuda
