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
    return bf16{bf16_of_float(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<T, f16>) {
    return f16{f16_of_float(static_cast<float>(x))};
  } else {
    return static_cast<T>(x);
  }
}

/// Two of bf16 or f16 (T), both rounded so, `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  return std::is_same_v<T, bf16> ? bf16_pair(low, high) : f16_pair(low, high);
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

/// Pairs of narrow elements, the first in the lower half of each word.
template <int N>
struct [[gnu::may_alias]] alignas(4 * N) Words {
  std::uint32_t x[N];
};
/// A pack as registers have it best: taking single elements of 16 bits out of words costs more than
/// what is computed from them.
template <class T, int V>
using Bits = std::conditional_t<sizeof(T) == 2 && V % 2 == 0, Words<V / 2>, Pack<T, V>>;

template <int V, class T>
__device__ __forceinline__ Bits<T, V> load_bits(const T* from) {
  return *aligned(reinterpret_cast<const Bits<T, V>*>(from));
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Words<N>& words) {
  static_assert(sizeof(T) == 2);
  *aligned(reinterpret_cast<Words<N>*>(to)) = words;
}

template <class T, int V>
__device__ __forceinline__ void widen_bits(const Bits<T, V>& bits, Wide<T> (&x)[V]) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    for (int k = 0; k < V; k += 2) {
      const std::uint32_t word = bits.x[k / 2];
      if constexpr (std::is_same_v<T, bf16>) {
        x[k] = __uint_as_float(word << 16);
        x[k + 1] = __uint_as_float(word & 0xffff0000u);
      } else {
        x[k] = float_of_f16(static_cast<std::uint16_t>(word));
        x[k + 1] = float_of_f16(static_cast<std::uint16_t>(word >> 16));
      }
    }
  } else {
    for (int k = 0; k < V; ++k) x[k] = widen(bits.x[k]);
  }
}

/// Rounds a pack of values; narrow ones in pairs, an instruction each.
template <class T, int V, class W>
__device__ __forceinline__ Bits<T, V> narrow_bits(const W (&x)[V]) {
  Bits<T, V> bits;
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    for (int k = 0; k < V; k += 2) bits.x[k / 2] = pack_pair<T>(x[k], x[k + 1]);
  } else {
    for (int k = 0; k < V; ++k) bits.x[k] = narrow<T>(x[k]);
  }
  return bits;
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
