#pragma once
/// What the attention kernels for sm_90a share: operands in panels that wgmma reads, the queue of
/// tiles between the warp that copies and the warpgroups that multiply. The division of work is
/// that of FlashAttention-3 (arXiv 2407.08608).

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace llmtrain::kernels::cuda {

/// Warpgroups of a block that multiply, and beside them one whose warps copy: with two, each of
/// their threads has 232 registers.
inline constexpr int kGroups = 2;
inline constexpr int kBlockThreads = kWarpgroupThreads * (1 + kGroups);
inline constexpr int kRegisters = 232, kCopierRegisters = 40;
/// What a thread has when a block begins: launch bounds of kBlockThreads leave it so many, in steps
/// of eight. Who asks for more than all have together waits for ever.
inline constexpr int kFirstRegisters = (64 << 10) / kBlockThreads / 8 * 8;
static_assert(kGroups * kRegisters + kCopierRegisters <= (1 + kGroups) * kFirstRegisters);

/// Matrices of a kernel of the backward, in boxes of as many rows as its tiles have.
struct GradientMaps {
  CUtensorMap q, dout, k, v;
};

/// Which part of the problem a block of queries has.
struct QueryBlock {
  int sequence, group, head, first;  // the first query

  /// The heads of a group and the tiles of a sequence follow each other, so that keys and values
  /// stay in L2; late queries, which see most keys, begin first.
  __device__ QueryBlock(const AttentionArgs<float>& args, int queries) {
    const int tiles = (args.tq + queries - 1) / queries;
    int n = static_cast<int>(blockIdx.x);
    const int in_group = n % args.per_group();
    n /= args.per_group();
    first = (tiles - 1 - n % tiles) * queries;
    n /= tiles;
    group = n % args.kv_heads;
    sequence = n / args.kv_heads;
    head = group * args.per_group() + in_group;
  }
};

/// kRows rows of one head, of bf16 or f16 (T), as panels of 64 columns, head_dim padded to kDim
/// with zeros.
template <class T, int kDim, int kRows>
struct PanelTile {
  static_assert(kDim % kPanelColumns == 0 && kRows % 8 == 0);
  static constexpr int kPanels = kDim / kPanelColumns;
  static constexpr int kPanelElements = kRows * kPanelColumns;
  static constexpr unsigned kBytes = sizeof(T) * kRows * kDim;
  static constexpr unsigned kGroupBytes = 8 * kPanelColumns * sizeof(T);  // of eight rows
  static_assert(kPanelElements * sizeof(T) % kPanelAlignment == 0);

  T elements[kRows * kDim];

  /// By one thread, which makes the barrier expect kBytes.
  __device__ void copy(const CUtensorMap& map, int head, int row, int sequence,
                       PhaseBarrier& barrier) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      copy_box(elements + p * kPanelElements, map, p * kPanelColumns, head, row, sequence, barrier);
    }
  }
  /// Rows `row` and on, columns 16 k to 16 k + 15, as A, or as B whose columns the rows are.
  __device__ std::uint64_t by_rows(int row, int k) const {
    constexpr int kSteps = kPanelColumns / 16;
    const T* const at =
        elements + k / kSteps * kPanelElements + row * kPanelColumns + k % kSteps * 16;
    return matrix_descriptor(shared_address(at), 0, kGroupBytes);
  }
  /// Rows 16 k to 16 k + 15 as the steps of summation of a B that has all columns.
  __device__ std::uint64_t by_columns(int k) const {
    return matrix_descriptor(shared_address(elements + k * 16 * kPanelColumns),
                             kPanelElements * sizeof(T), kGroupBytes);
  }
};

/// A slot of a ring of kSlots and the parity of the phase in which it is filled.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  unsigned parity = 0;

  __device__ void advance() {
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

/// Whether a slot of a ring has what was copied, and whether everybody is done with it.
struct SlotBarriers {
  PhaseBarrier full, empty;

  /// Filled by one thread's open() and so many other arrivals; used by so many warps.
  __device__ void initialise_both(int other_arrivals, int using_warps) {
    initialise(full, static_cast<unsigned>(1 + other_arrivals));
    initialise(empty, static_cast<unsigned>(using_warps));
  }
  /// The copying thread: the slot may be filled, and will be with so many bytes.
  __device__ void open(unsigned parity, unsigned bytes) {
    wait_for_phase(empty, parity ^ 1u);
    arrive_expecting(full, bytes);
  }
  __device__ void wait(unsigned parity) { wait_for_phase(full, parity); }
  /// All threads of a warp that is done with it: each warp waited for its own products only, and
  /// its lanes may have read by themselves.
  __device__ void close() {
    __syncwarp();
    if (lane_of_warp() == 0) arrive(empty);
  }
};

/// What is the same in all lanes of a warp, and is seen to be by the compiler: where branches may
/// part a warp, it lets no products run asynchronously.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

__device__ __forceinline__ int warpgroup_of_block() {
  return uniform(static_cast<int>(threadIdx.x / kWarpgroupThreads));
}

/// All warps of a warpgroup find the same tiles; the compiler must know it for each warp at least.
template <class Step>
__device__ __forceinline__ Step uniform_step(const Step& step) {
  return {uniform(step.tile), uniform(step.some) != 0, uniform(step.all) != 0};
}

template <class Step>
__device__ __forceinline__ Step uniform_group_step(const Step& step) {
  return {uniform(step.head), uniform_step(step.tile)};
}

/// The threads of a warpgroup that multiplies, by its number among these.
__device__ __forceinline__ void sync_warpgroup(int own) { sync_named(1 + own, kWarpgroupThreads); }

/// sums = a b^T over kDim columns; to be fenced before and committed behind.
template <class T, int kDim, int kRowsA, int kRowsB, int N>
__device__ __forceinline__ void multiply_tiles(FragmentC (&sums)[N],
                                               const PanelTile<T, kDim, kRowsA>& a,
                                               const PanelTile<T, kDim, kRowsB>& b) {
  static_assert(kRowsA == 64 && kRowsB == 8 * N);
  multiply<T, false>(sums, a.by_rows(0, 0), b.by_rows(0, 0));
#pragma unroll
  for (int k = 1; k < kDim / 16; ++k) multiply<T, true>(sums, a.by_rows(0, k), b.by_rows(0, k));
}

/// sums += a b, where a is K fragments of 16 steps of summation each.
template <int kDim, class T, int kRows, int K>
__device__ __forceinline__ void accumulate_tile(FragmentC (&sums)[kDim / 8],
                                                const FragmentA (&a)[K],
                                                const PanelTile<T, kDim, kRows>& b) {
  static_assert(kRows == 16 * K);
#pragma unroll
  for (int k = 0; k < K; ++k) multiply_transposed<T>(sums, a[k], b.by_columns(k));
}

/// The fragments of A that sums are as T.
template <class T, int N>
__device__ __forceinline__ void round_to_a(const FragmentC (&sums)[N], FragmentA (&a)[N / 2]) {
#pragma unroll
  for (int k = 0; k < N / 2; ++k) a[k] = a_of<T>(sums[2 * k], sums[2 * k + 1]);
}

}  // namespace llmtrain::kernels::cuda
