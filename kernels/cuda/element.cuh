#pragma once
/// Elements on the device: fp64 computes in double, everything else in float. Packs are what a
/// thread reads or writes in one access of up to 16 bytes.

#include <type_traits>

#include "kernels/cuda/simt.cuh"
#include "lib/base/error.hpp"

namespace llmtrain::kernels::cuda {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ __forceinline__ float widen(f16 x) { return float_of_f16(x.bits); }

/// Rounds to nearest, ties to even; a NaN stays one.
template <class T, class W>
__device__ __forceinline__ T narrow(W x) {
  if constexpr (std::is_same_v<T, bf16>) {
    const auto f = static_cast<float>(x);
    const unsigned u = __float_as_uint(f);
    const unsigned rounded = f != f ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
    return bf16{static_cast<std::uint16_t>(rounded >> 16)};
  } else if constexpr (std::is_same_v<T, f16>) {
    return f16{f16_of_float(static_cast<float>(x))};
  } else {
    return static_cast<T>(x);
  }
}

/// V elements side by side; aligned, so that one instruction moves them.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T x[V];
};

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int V, class T>
__device__ __forceinline__ Pack<T, V> load_pack(const T* from) {
  return *aligned(reinterpret_cast<const Pack<T, V>*>(from));
}
template <int V, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, V>& pack) {
  *aligned(reinterpret_cast<Pack<T, V>*>(to)) = pack;
}

/// Rows of a strided view as kernels see them; null data for an absent operand.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;

  Rows() = default;
  explicit Rows(const View& view) : data(static_cast<T*>(view.data)), stride(view.row_stride) {}
  __device__ T* row(std::int64_t i) const { return data + i * stride; }
  __device__ explicit operator bool() const { return data != nullptr; }
};

/// True when every row of the view begins at a multiple of `bytes`.
inline bool rows_aligned(const View& view, std::size_t bytes) {
  return !view.defined() ||
         (reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0 &&
          (view.rows() <= 1 ||
           static_cast<std::size_t>(view.row_stride) * size_of(view.dtype) % bytes == 0));
}

/// Calls f.operator()<T>() for the element type of a compute dtype. InternalError for others, which
/// no kernel's check() lets through.
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      throw InternalError("no CUDA kernel computes in this type");
  }
}

}  // namespace llmtrain::kernels::cuda
