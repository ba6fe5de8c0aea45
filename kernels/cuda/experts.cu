// Rows on their way to experts and back, and who multiplies for experts.
#include "kernels/cuda/grouped_matmul.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/experts.hpp"
#include "kernels/expert_slots.hpp"
#include "kernels/experts.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// The block's chunk of choices as slots in shared memory; returns their number. What is no
/// expert's, or that of none that there is, is of slot `experts`.
__device__ int load_chunk(const std::int32_t* expert, std::int64_t n, int experts,
                          std::int32_t (&slots)[kChoicesOfChunk]) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kChoicesOfChunk;
  const auto count = static_cast<int>(std::min(n - first, std::int64_t{kChoicesOfChunk}));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const std::int32_t e = expert[first + i];
    slots[i] = e >= 0 && e < experts ? e : experts;
  }
  __syncthreads();
  return count;
}

/// counts[chunk, slot] = how many choices of the chunk are of the slot. A thread has every
/// kThreads-th slot and looks at all choices, which costs less than putting them in order at once.
__global__ void __launch_bounds__(kThreads)
    count_slots(const std::int32_t* expert, std::int64_t n, int experts, std::int32_t* counts) {
  __shared__ std::int32_t slots[kChoicesOfChunk];
  const int size = load_chunk(expert, n, experts, slots);
  for (int slot = static_cast<int>(threadIdx.x); slot <= experts; slot += kThreads) {
    std::int32_t count = 0;
    for (int i = 0; i < size; ++i) count += slots[i] == slot;
    counts[std::int64_t{blockIdx.x} * (experts + 1) + slot] = count;
  }
}

/// Replaces each chunk's count of a slot by the sum of those before it; returns the sum of all.
__device__ std::int32_t sum_chunks(std::int32_t* counts, std::int64_t chunks, int slots) {
  constexpr int kAhead = 16;  // under way at once
  std::int32_t all = 0;
  for (std::int64_t c = 0; c < chunks; c += kAhead) {
    std::int32_t ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) ahead[k] = c + k < chunks ? counts[(c + k) * slots] : 0;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (c + k < chunks) counts[(c + k) * slots] = all;
      all += ahead[k];
    }
  }
  return all;
}

/// offsets[slot] = where the slot's choices begin; counts[chunk, slot] = how many of them come from
/// chunks before. One block.
__global__ void __launch_bounds__(kThreads)
    place_slots(std::int32_t* counts, std::int64_t chunks, int experts, std::int32_t* offsets) {
  __shared__ int of_warps[kWarps];
  const int slots = experts + 1;
  int begin = 0;
  for (int first = 0; first < slots; first += kThreads) {
    const int slot = first + static_cast<int>(threadIdx.x);
    const int count = slot < slots ? sum_chunks(counts + slot, chunks, slots) : 0;
    int all;
    const int before = sum_before_thread<kThreads>(count, of_warps, all);
    if (slot < slots) offsets[slot] = begin + before;
    begin += all;
  }
}

/// The choices of the chunk, in their order, into the places of their slots.
__global__ void __launch_bounds__(kThreads)
    sort_chunk(const std::int32_t* expert, std::int64_t n, int experts, const std::int32_t* counts,
               const std::int32_t* offsets, std::int32_t* source, std::int32_t* place) {
  __shared__ std::int32_t slots[kChoicesOfChunk];
  const int size = load_chunk(expert, n, experts, slots);
  const std::int64_t first = std::int64_t{blockIdx.x} * kChoicesOfChunk;
  for (int slot = static_cast<int>(threadIdx.x); slot <= experts; slot += kThreads) {
    std::int32_t p = offsets[slot] + counts[std::int64_t{blockIdx.x} * (experts + 1) + slot];
    for (int i = 0; i < size; ++i) {
      if (slots[i] != slot) continue;
      source[p] = static_cast<std::int32_t>(first + i);
      place[first + i] = p++;
    }
  }
}

void group_by_expert(const KernelCtx& ctx, const GroupByExpert& op, const View& workspace) {
  const std::int64_t n = op.expert.numel(), chunks = ceil_div(n, kChoicesOfChunk);
  const auto experts = static_cast<int>(op.experts());
  const auto* const expert = op.expert.as<const std::int32_t>();
  auto *const counts = workspace.as<std::int32_t>(), *const offsets = op.offsets.as<std::int32_t>();
  const Grid grid{static_cast<unsigned>(chunks), kThreads};
  launch_grid(ctx, grid, count_slots, expert, n, experts, counts);
  launch_grid(ctx, {1u, kThreads}, place_slots, counts, chunks, experts, offsets);
  launch_grid(ctx, grid, sort_chunk, expert, n, experts, counts, offsets,
              op.source.as<std::int32_t>(), op.place.as<std::int32_t>());
}

struct SlotTables {
  const std::int32_t* offsets;
  std::int32_t *source, *expert, *place;
  std::int64_t rows, slots;  // of each rank
  int ranks, experts;        // of each rank
};

/// The expert of all whose rows p is among; offsets[ranks * experts] must be above p.
__device__ int expert_of_row(const SlotTables& t, std::int64_t p) {
  int low = 0, high = t.ranks * t.experts;  // offsets[low] <= p < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (t.offsets[middle] <= p ? low : high) = middle;
  }
  return low;
}

/// A thread has slot `i` of all and sorted row `i`.
__global__ void __launch_bounds__(kThreads)
    assign_slots_kernel(SlotTables t, double* needed, double even_rows) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < t.ranks * t.slots) {
    const auto rank = static_cast<int>(i / t.slots);
    const std::int64_t p = t.offsets[rank * t.experts] + (i - rank * t.slots);
    const bool filled = p < t.offsets[(rank + 1) * t.experts];
    t.source[i] = filled ? static_cast<std::int32_t>(p) : AssignSlots::kEmpty;
    t.expert[i] = filled ? expert_of_row(t, p) - rank * t.experts : AssignSlots::kEmpty;
  }
  if (i < t.rows) {
    std::int32_t slot = AssignSlots::kEmpty;
    if (i < t.offsets[t.ranks * t.experts]) {
      const int rank = expert_of_row(t, i) / t.experts;
      const std::int64_t k = i - t.offsets[rank * t.experts];
      slot = k < t.slots ? static_cast<std::int32_t>(rank * t.slots + k) : AssignSlots::kNoSlot;
    }
    t.place[i] = slot;
  }
  if (i > 0 || needed == nullptr) return;
  std::int32_t most = 0;
  for (int rank = 0; rank < t.ranks; ++rank) {
    most = std::max(most, t.offsets[(rank + 1) * t.experts] - t.offsets[rank * t.experts]);
  }
  if (most > t.slots) *needed = std::fmax(*needed, most / even_rows);
}

void assign_slots(const KernelCtx& ctx, const AssignSlots& op, const View&) {
  const SlotTables tables{.offsets = op.offsets.as<const std::int32_t>(),
                          .source = op.source.as<std::int32_t>(),
                          .expert = op.expert.as<std::int32_t>(),
                          .place = op.place.as<std::int32_t>(),
                          .rows = op.place.numel(),
                          .slots = op.slots(),
                          .ranks = static_cast<int>(op.ranks),
                          .experts = static_cast<int>(op.experts_of_rank())};
  const std::int64_t threads = std::max(op.source.numel(), op.place.numel());
  const Grid grid{static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads};
  launch_grid(ctx, grid, assign_slots_kernel, tables,
              op.needed.defined() ? op.needed.as<double>() : nullptr, op.even_rows);
}

template <class T, int V>
struct TakePacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  Rows<T> y;
  const std::int32_t* from;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    const std::int32_t at = from[row];
    Pack<T, V> pack{};
    if (at >= 0) {
      pack = load_pack<V>(x.row(at) + col);
    } else if (at == AssignSlots::kNoSlot) {
      for (int i = 0; i < V; ++i) pack.x[i] = narrow<T>(static_cast<Wide<T>>(NAN));
    }
    store_pack(y.row(row) + col, pack);
  }
};

template <class T, int V>
struct GatherPacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  Rows<T> y;
  const std::int32_t *source, *end;  // where the last expert's rows end
  int top_k;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    Pack<T, V> pack{};
    if (row < *end) pack = load_pack<V>(x.row(source[row] / top_k) + col);
    store_pack(y.row(row) + col, pack);
  }
};

template <class T, int V>
struct CombinePacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  Rows<T> y;
  const std::int32_t* place;
  int top_k;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    Wide<T> sums[V] = {};
#pragma unroll 4
    for (int k = 0; k < top_k; ++k) {
      const auto pack = load_pack<V>(x.row(place[row * top_k + k]) + col);
      for (int i = 0; i < V; ++i) sums[i] += widen(pack.x[i]);
    }
    Pack<T, V> result;
    for (int i = 0; i < V; ++i) result.x[i] = narrow<T>(sums[i]);
    store_pack(y.row(row) + col, result);
  }
};

/// Packs of `written`, row by row: its rows are not those of what is read.
template <class T, class F>
void map_rows(const KernelCtx& ctx, const View& read, const View& written, const F& packs_of) {
  MapShape shape(written);
  shape.rows = written.rows();
  shape.cols = written.cols();
  const auto run = [&]<int V>() { map(ctx, shape, packs_of.template operator()<V>()); };
  const bool packed =
      shape.cols % kPack<T> == 0 && rows_aligned(read, 16) && rows_aligned(written, 16);
  packed ? run.template operator()<kPack<T>>() : run.template operator()<1>();
}

void gather_rows(const KernelCtx& ctx, const GatherRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    map_rows<T>(ctx, op.x, op.y, [&]<int V>() {
      return GatherPacks<T, V>{Rows<const T>(op.x), Rows<T>(op.y),
                               op.source.as<const std::int32_t>(),
                               op.offsets.as<const std::int32_t>() + op.offsets.numel() - 1,
                               static_cast<int>(op.top_k())};
    });
  });
}

void combine_rows(const KernelCtx& ctx, const CombineRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    map_rows<T>(ctx, op.x, op.y, [&]<int V>() {
      return CombinePacks<T, V>{Rows<const T>(op.x), Rows<T>(op.y),
                                op.place.as<const std::int32_t>(), static_cast<int>(op.top_k())};
    });
  });
}

void take_rows(const KernelCtx& ctx, const TakeRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    map_rows<T>(ctx, op.x, op.y, [&]<int V>() {
      return TakePacks<T, V>{Rows<const T>(op.x), Rows<T>(op.y), op.from.as<const std::int32_t>()};
    });
  });
}

void grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op, const View&) {
  const bool plain = op.a.dtype == DType::f64 || (op.a.dtype == DType::f32 && !ctx.tf32);
  plain ? plain_grouped_matmul(ctx, op) : tensor_grouped_matmul(ctx, op);
}

}  // namespace

void add_experts_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GroupByExpert, group_by_expert>());
  rows.push_back(row_of<GatherRows, gather_rows>());
  rows.push_back(row_of<CombineRows, combine_rows>());
  rows.push_back(row_of<AssignSlots, assign_slots>());
  rows.push_back(row_of<TakeRows, take_rows>());
  rows.push_back(row_of<GroupedMatmul, grouped_matmul>());
}

}  // namespace llmtrain::kernels::cuda
