#pragma once
/// How norms walk over rows. Short rows belong to the lanes of a warp, long ones to a thread block;
/// each thread keeps its packs of the row in registers, so that global memory is read once. Only
/// rows that no block can hold, and unaligned ones, are read again for every pass.

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm.hpp"

namespace llmtrain::kernels::cuda {

void norm_forward(const KernelCtx& ctx, const NormForward& op, const View& workspace);
void norm_backward(const KernelCtx& ctx, const NormBackward& op, const View& workspace);
/// Its parts, for rows of any kind: dx; and the sums of row blocks, into the workspace.
void norm_input_grad(const KernelCtx& ctx, const NormBackward& op);
void norm_weight_sums(const KernelCtx& ctx, const NormBackward& op, const View& workspace);

/// Norm i of a matrix: head i % heads of row i / heads. Null data for an absent operand.
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;
  int heads = 1, width = 0;

  HeadRows(const View& view, const NormRows& rows)
      : data(static_cast<T*>(view.data)),
        stride(view.row_stride),
        heads(static_cast<int>(rows.heads)),
        width(static_cast<int>(rows.width)) {}
  __device__ T* at(std::int64_t i) const {
    if (heads == 1) return data + i * stride;
    const std::int64_t row = i / heads;
    return data + row * stride + (i - row * heads) * width;
  }
};

/// A weight or bias, FP32 beside activations of any type.
template <class T>
struct Affine {
  const void* data = nullptr;
  bool is_f32 = false;

  explicit Affine(const View& view) : data(view.data), is_f32(view.dtype == DType::f32) {}
  /// What RowWalk::load() found of columns j and on, or what is read now.
  template <int V>
  __device__ __forceinline__ void widen(int j, const Bits<T, V>& found, Wide<T> (&to)[V]) const {
    is_f32 ? load(j, to) : widen_bits<T>(found, to);
  }
  template <int V>
  __device__ __forceinline__ void load(int j, Wide<T> (&to)[V]) const {
    if (is_f32) {
      constexpr int kPart = V < 4 ? V : 4;
      for (int part = 0; part < V; part += kPart) {
        const auto pack = load_pack<kPart>(static_cast<const float*>(data) + j + part);
        for (int i = 0; i < kPart; ++i) to[part + i] = pack.x[i];
      }
    } else {
      widen_bits<T>(load_bits<V>(static_cast<const T*>(data) + j), to);
    }
  }
};

/// Threads of a block whose rows belong to lanes of a warp.
inline constexpr int kLaneRowThreads = 128;

/// A kernel's way over rows: packs of V elements, `packs` of them in each thread's registers (0:
/// none, rows are read again), rows of a block of `threads`, or of some lanes where `threads` is 0.
template <int V, int packs, int threads>
struct RowWalk {
  static constexpr int kWidth = V;
  static constexpr int kPacks = packs;
  static constexpr int kThreads = threads;
  static constexpr int kBlock = threads == 0 ? kLaneRowThreads : threads;
  /// Blocks that shall share a multiprocessor: others work while one waits at a barrier.
  static constexpr int kMinBlocks = threads == 0                   ? (packs < 4 ? 5 : 4)
                                    : threads == 256 && packs == 4 ? 2
                                                                   : 1;
  static constexpr bool kCached = packs > 0;
  static constexpr int kSlots = kCached ? packs : 1;

  int width;  // of a row
  int lanes;  // that a row belongs to, where threads == 0; a power of two

  __device__ int group() const { return threads == 0 ? lanes : threads; }
  __device__ std::int64_t row() const {
    if constexpr (threads != 0) return blockIdx.x;
    return std::int64_t{blockIdx.x} * (kBlock / lanes) + threadIdx.x / static_cast<unsigned>(lanes);
  }
  /// The row of this thread among `count`. Lanes without one look at the last and write nothing.
  struct Place {
    std::int64_t row;
    bool live;
  };
  __device__ __forceinline__ Place place(std::int64_t count) const {
    const std::int64_t own = row();
    return own < count ? Place{own, true} : Place{count - 1, false};
  }
  /// First column of this thread's pack of a slot.
  __device__ __forceinline__ int column(int slot) const {
    const int first = static_cast<int>(threadIdx.x) & (group() - 1);
    return (slot * group() + first) * V;
  }
  /// f(first column) for this thread's packs of a row that is not held.
  template <class F>
  __device__ __forceinline__ void for_packs(const F& f) const {
    for (int j = column(0); j < width; j += group() * V) f(j);
  }
  /// Whether the row has this thread's pack of a slot.
  __device__ __forceinline__ bool has(int slot) const { return column(slot) < width; }
  /// Reads this thread's packs; those beyond the row are zeros. All loads are in flight at once.
  template <class T>
  __device__ __forceinline__ void load(const T* from, Bits<T, V> (&to)[kSlots]) const {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      to[k] = {};
      if (has(k)) to[k] = load_bits<V>(from + column(k));
    }
  }
  /// The same of a weight or bias, where that is as narrow as T: others are few, and read when they
  /// are used.
  template <class T>
  __device__ __forceinline__ void load(const Affine<T>& from, Bits<T, V> (&to)[kSlots]) const {
    if (from.is_f32 || from.data == nullptr) return;
    load(static_cast<const T*>(from.data), to);
  }
  /// Sum over the row; `slot` as in sum_of_block.
  template <class W>
  __device__ __forceinline__ W sum(W x, W* slot) const {
    if constexpr (threads == 0) {
      return sum_of_lanes(x, lanes);
    } else {
      return sum_of_block<threads>(x, slot);
    }
  }
};

/// True when rows of `width` elements of T can be read and written in packs.
template <class T, class... Views>
bool packs_fit(std::int64_t width, const Views&... views) {
  return width % kPack<T> == 0 && (... && rows_aligned(views, 16));
}

/// Calls f(walk, blocks) with the way over `count` rows that suits their width. FP64 is for proofs
/// and has only the plain ones.
template <class T, class F>
void with_walk(std::int64_t count, std::int64_t row_width, bool packed, const F& f) {
  const auto width = static_cast<int>(row_width);
  const auto lane_rows = [&]<int V, int packs>(int lanes) {
    f(RowWalk<V, packs, 0>{width, lanes},
      static_cast<unsigned>(ceil_div(count, kLaneRowThreads / lanes)));
  };
  const auto block_rows = [&]<int V, int packs, int threads>() {
    f(RowWalk<V, packs, threads>{width, threads}, static_cast<unsigned>(count));
  };
  if (std::is_same_v<T, double> || !packed) {
    return width <= 1024 ? lane_rows.template operator()<1, 0>(32)
                         : block_rows.template operator()<1, 0, 512>();
  }
  if constexpr (!std::is_same_v<T, double>) {
    constexpr int V = kPack<T>;
    const int packs = width / V;
    int lanes = 1;
    while (lanes < packs && lanes < 32) lanes *= 2;
    if (packs <= 32) return lane_rows.template operator()<V, 1>(lanes);
    if (packs <= 64) return lane_rows.template operator()<V, 2>(lanes);
    if (packs <= 96) return lane_rows.template operator()<V, 3>(lanes);
    if (packs <= 128) return lane_rows.template operator()<V, 4>(lanes);
    if (packs <= 256) return block_rows.template operator()<V, 2, 128>();
    if (packs <= 512) return block_rows.template operator()<V, 2, 256>();
    if (packs <= 1024) return block_rows.template operator()<V, 4, 256>();
    if (packs <= 2048) return block_rows.template operator()<V, 4, 512>();
    // Twice as many packs of BF16 would not stay in registers.
    if constexpr (V == 4) {
      if (packs <= 4096) return block_rows.template operator()<V, 8, 512>();
    }
    block_rows.template operator()<V, 0, 512>();
  }
}

}  // namespace llmtrain::kernels::cuda
