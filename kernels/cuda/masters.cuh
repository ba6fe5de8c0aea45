#pragma once
/// The masters of an update on the device, and the walk of a thread block through its chunk of a
/// list of parameters.

#include "kernels/cuda/list.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/optimizer.hpp"
#include "lib/tensor/split_master.hpp"

namespace llmtrain::kernels::cuda {

/// The masters of an update, in whichever form they are, and their copies.
template <class T>
struct Masters {
  T* whole;                  // or null
  void* copy;                // or null
  std::uint16_t* remainder;  // or null
  DType copy_type;
  StochasticRounding rounding;

  explicit Masters(const UpdateOperands& to)
      : whole(to.parameter.as<T>()),
        copy(to.compute_copy.data),
        remainder(to.remainder.as<std::uint16_t>()),
        copy_type(to.compute_copy.dtype),
        rounding(to.rounding) {}
  /// Of one parameter of a list.
  template <class Row>
  __device__ Masters(const Row& row, DType type_of_copies)
      : whole(static_cast<T*>(row.parameter)),
        copy(row.compute_copy),
        remainder(static_cast<std::uint16_t*>(row.remainder)),
        copy_type(type_of_copies),
        rounding(row.rounding) {}

  template <int V>
  __device__ Pack<T, V> load(std::int64_t i) const {
    if (whole != nullptr) return load_pack<V>(whole + i);
    const auto rounded = load_pack<V>(static_cast<const bf16*>(copy) + i);
    Pack<T, V> joined;
    if (remainder == nullptr) {
      for (int k = 0; k < V; ++k) joined.x[k] = to_float(rounded.x[k]);
      return joined;
    }
    const auto low = load_pack<V>(remainder + i);
    for (int k = 0; k < V; ++k) joined.x[k] = join_master({rounded.x[k], low.x[k]});
    return joined;
  }
  /// `update`: the number of this one.
  template <int V>
  __device__ void store(std::int64_t i, const Pack<T, V>& values, std::uint64_t update) const {
    if (whole != nullptr) store_pack(whole + i, values);
    if (copy == nullptr) return;
    if (copy_type == DType::f32) return store_as<float>(i, values);
    if (copy_type == DType::f16) return store_as<f16>(i, values);
    if (rounding.on) return store_by_chance(i, values, update);
    Pack<bf16, V> rounded;
    Pack<std::uint16_t, V> low;
    for (int k = 0; k < V; ++k) {
      const MasterParts parts = split_master(static_cast<float>(values.x[k]));
      rounded.x[k] = parts.copy;
      low.x[k] = parts.remainder;
    }
    store_pack(static_cast<bf16*>(copy) + i, rounded);
    if (remainder != nullptr) store_pack(remainder + i, low);
  }
  template <class C, int V>
  __device__ void store_as(std::int64_t i, const Pack<T, V>& values) const {
    Pack<C, V> rounded;
    for (int k = 0; k < V; ++k) rounded.x[k] = narrow<C>(values.x[k]);
    store_pack(static_cast<C*>(copy) + i, rounded);
  }
  template <int V>
  __device__ void store_by_chance(std::int64_t i, const Pack<T, V>& values,
                                  std::uint64_t update) const {
    Pack<bf16, V> rounded;
    PhiloxWords words{};
    std::uint64_t block = ~std::uint64_t{0};
    for (int k = 0; k < V; ++k) {
      const std::uint64_t index = rounding.index(i + k);
      if (index / 4 != block) words = philox_block(rounding.key, update, index);
      block = index / 4;
      rounded.x[k] =
          round_stochastically(static_cast<float>(values.x[k]), word_of(words, index % 4));
    }
    store_pack(static_cast<bf16*>(copy) + i, rounded);
  }
};

/// A state of an update: of the master's type T, or bf16.
template <class T, int V, class S>
__device__ Pack<T, V> load_state(const S* state, std::int64_t i) {
  const auto stored = load_pack<V>(state + i);
  if constexpr (std::is_same_v<S, T>) {
    return stored;
  } else {
    Pack<T, V> values;
    for (int k = 0; k < V; ++k) values.x[k] = to_float(stored.x[k]);
    return values;
  }
}
/// State `number` of a parameter, in the update `update`.
template <class T, int V, class S>
__device__ void store_state(S* state, std::int64_t i, const Pack<T, V>& values,
                            const StateRounding& rounding, int number, std::uint64_t update) {
  if constexpr (std::is_same_v<S, T>) {
    store_pack(state + i, values);
  } else {
    Pack<bf16, V> rounded;
    PhiloxWords words{};
    std::uint64_t block = ~std::uint64_t{0};
    for (int k = 0; k < V; ++k) {
      const std::uint64_t index = rounding.words.index(i + k), word = index / 4;
      if (word / 4 != block) words = philox_block(rounding.keys[number], update, word);
      block = word / 4;
      const std::uint16_t half = shared_half(word_of(words, word % 4), index);
      rounded.x[k] = round_by_half(values.x[k], half);
    }
    store_pack(state + i, rounded);
  }
}

/// True when `data` is a multiple of `bytes`; null is.
__device__ inline bool lies_at(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// True when whole packs of T lie at multiples of their size, in copies and halves too; states are
/// asked about apart.
template <class T, class Row>
__device__ bool takes_packs(const Row& row, DType type_of_copies) {
  return lies_at(row.parameter, 16) && lies_at(row.gradient, 16) &&
         lies_at(row.remainder, kPack<T> * sizeof(std::uint16_t)) &&
         lies_at(row.compute_copy, kPack<T> * size_of(type_of_copies));
}

/// Calls of.update<V>(i) for the elements of the block's chunk of a parameter by all threads, in
/// packs where `packs` says that addresses allow it. A chunk begins at a multiple of every pack.
template <class T, class Of>
__device__ void update_chunk(const Of& of, const ListPlace& place, bool packs) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t begin = (blockIdx.x - place.first_chunk) * kListChunk;
  const std::int64_t left = place.numel - begin;
  const std::int64_t end = begin + (left < kListChunk ? left : kListChunk);
  std::int64_t rest = begin;
  if (packs) {
    rest = end - (end - begin) % kWidth;
    for (std::int64_t i = begin + threadIdx.x * kWidth; i < rest; i += kMapThreads * kWidth) {
      of.template update<kWidth>(i);
    }
  }
  for (std::int64_t i = rest + threadIdx.x; i < end; i += kMapThreads) of.template update<1>(i);
}

}  // namespace llmtrain::kernels::cuda
