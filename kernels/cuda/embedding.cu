#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/loss.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kLookUpThreads = 256;

/// Neighbouring threads share a row, `threads_of_row` (a power of two) each. A row that another
/// part of the vocabulary has is zero, one without an entry in any becomes NaN.
template <class T, int V>
__global__ void __launch_bounds__(kLookUpThreads)
    look_up(const std::int32_t* id, std::int64_t rows, const T* table, std::int64_t table_rows,
            std::int64_t first, std::int64_t ids, int hidden, int threads_of_row, T* y,
            bool accumulate) {
  const int tid = static_cast<int>(threadIdx.x);
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kLookUpThreads / threads_of_row) + tid / threads_of_row;
  if (row >= rows) return;
  const std::int64_t entry = id[row] - first;
  const bool here = entry >= 0 && entry < table_rows;
  const bool known = id[row] >= 0 && id[row] < ids;
  const T* const from = table + entry * hidden;
  T* const to = y + row * hidden;
#pragma unroll 2
  for (int j = (tid & (threads_of_row - 1)) * V; j < hidden; j += threads_of_row * V) {
    Pack<T, V> pack, sum;
    if (here) pack = load_pack<V>(from + j);
    if (accumulate) sum = load_pack<V>(to + j);
    for (int k = 0; k < V; ++k) {
      if (!here) pack.x[k] = narrow<T>(static_cast<Wide<T>>(known ? 0 : NAN));
      if (accumulate) pack.x[k] = narrow<T>(widen(sum.x[k]) + widen(pack.x[k]));
    }
    store_pack(to + j, pack);
  }
}

void embedding_forward(const KernelCtx& ctx, const EmbeddingForward& op, const View&) {
  const std::int64_t rows = op.id.numel(), hidden = op.table.cols();
  if (hidden == 0) return;
  with_type(op.table.dtype, [&]<class T>() {
    const auto run = [&]<int V>() {
      int threads_of_row = 1;
      while (threads_of_row < kLookUpThreads && threads_of_row * V < hidden) threads_of_row *= 2;
      const std::int64_t blocks = ceil_div(rows, kLookUpThreads / threads_of_row);
      launch_grid(ctx, {static_cast<unsigned>(blocks), kLookUpThreads}, look_up<T, V>,
                  op.id.as<std::int32_t>(), rows, op.table.as<T>(), op.table.rows(), op.part.first,
                  op.part.end(op.table.rows()), static_cast<int>(hidden), threads_of_row,
                  op.y.as<T>(), op.accumulate);
    };
    const bool packed =
        hidden % kPack<T> == 0 && rows_aligned(op.table, 16) && rows_aligned(op.y, 16);
    packed ? run.template operator()<kPack<T>>() : run.template operator()<1>();
  });
}

constexpr int kGatherThreads = 256;
constexpr int kGatherWarps = kGatherThreads / 32;
/// Rows of one launch. Launches follow one another, so that rows with equal id are added in
/// ascending order whichever launch has them; within one, a block looks through all ids.
constexpr int kGatherRows = 4096;
constexpr int kGatherSteps = kGatherRows / kGatherThreads;
/// Rows whose gradients are under way at once: an id that occurs often is one long sum.
constexpr int kGatherAhead = 8;

/// Lists, in ascending order, the rows that have the id of row `self`; returns their number, or 0
/// when an earlier row leads them.
__device__ int rows_with_id_of(const std::int32_t* id, int rows, int self,
                               std::uint16_t (&list)[kGatherRows]) {
  __shared__ int found[kGatherWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int32_t wanted = id[self];
  // A warp looks at neighbouring ids, 32 at a time; lane k keeps what step k saw.
  const int first = warp * (kGatherRows / kGatherWarps);
  std::int32_t ids[kGatherSteps];
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    ids[step] = id[std::min(first + step * 32 + lane, rows - 1)];
  }
  bool led = false, leads = false;
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    const int row = first + step * 32 + lane;
    const bool same = ids[step] == wanted && row < rows;
    led |= same && row < self;
    leads |= same && row > self;
  }
  if (__syncthreads_or(led) != 0) return 0;
  if (__syncthreads_or(leads) == 0) {  // as most do
    if (threadIdx.x == 0) list[0] = static_cast<std::uint16_t>(self);
    __syncthreads();
    return 1;
  }
  unsigned seen = 0;
#pragma unroll
  for (int step = 0; step < kGatherSteps; ++step) {
    const bool same = ids[step] == wanted && first + step * 32 + lane < rows;
    const unsigned here = __ballot_sync(0xffffffffu, same);
    if (lane == step) seen = here;
  }
  const int begin = first + lane * 32;  // of the rows that `seen` is about
  int before = __popc(seen);
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += left;
  }
  if (lane == 31) found[warp] = before;
  __syncthreads();
  before -= __popc(seen);
  int total = 0;
  for (int w = 0; w < kGatherWarps; ++w) {
    if (w < warp) before += found[w];
    total += found[w];
  }
  for (; seen != 0; seen &= seen - 1) {
    list[before++] = static_cast<std::uint16_t>(begin + __ffs(static_cast<int>(seen)) - 1);
  }
  __syncthreads();
  return total;
}

/// dtable[id] += the rows of dy with this id, by the block of the first of them; blockIdx.y is the
/// slice of columns. Ids that the table does not have are left out; its rows begin with `first`.
template <class T, int V>
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows(const std::int32_t* id, int rows, const T* dy, Wide<T>* dtable, std::int64_t first,
                std::int64_t table_rows, std::int64_t hidden) {
  using W = Wide<T>;
  constexpr int kPart = V < kPack<W> ? V : kPack<W>;
  __shared__ std::uint16_t list[kGatherRows];
  const std::int64_t entry = id[blockIdx.x] - first;
  if (entry < 0 || entry >= table_rows) return;
  const int count = rows_with_id_of(id, rows, static_cast<int>(blockIdx.x), list);
  const std::int64_t j = (std::int64_t{blockIdx.y} * kGatherThreads + threadIdx.x) * V;
  if (j >= hidden) return;
  if (count == 0) return;
  W* const to = dtable + entry * hidden + j;
  W sums[V];
  for (int part = 0; part < V; part += kPart) {
    const auto pack = load_pack<kPart>(to + part);
    for (int k = 0; k < kPart; ++k) sums[part + k] = pack.x[k];
  }
  for (int r = 0; r < count; r += kGatherAhead) {
    Pack<T, V> packs[kGatherAhead];
#pragma unroll
    for (int u = 0; u < kGatherAhead; ++u) {
      packs[u] = load_pack<V>(dy + list[std::min(r + u, count - 1)] * hidden + j);
    }
#pragma unroll
    for (int u = 0; u < kGatherAhead; ++u) {
      if (r + u >= count) break;
      for (int k = 0; k < V; ++k) sums[k] += widen(packs[u].x[k]);
    }
  }
  for (int part = 0; part < V; part += kPart) {
    Pack<W, kPart> pack;
    for (int k = 0; k < kPart; ++k) pack.x[k] = sums[part + k];
    store_pack(to + part, pack);
  }
}

void embedding_backward(const KernelCtx& ctx, const EmbeddingBackward& op, const View&) {
  const std::int64_t rows = op.id.numel(), hidden = op.dtable.cols();
  with_type(op.dy.dtype, [&]<class T>() {
    const auto run = [&]<int V>() {
      const auto slices = static_cast<unsigned>(ceil_div(hidden, std::int64_t{kGatherThreads} * V));
      for (std::int64_t begin = 0; begin < rows; begin += kGatherRows) {
        const auto count = static_cast<int>(std::min<std::int64_t>(kGatherRows, rows - begin));
        launch_grid(ctx, {dim3(static_cast<unsigned>(count), slices), kGatherThreads},
                    gather_rows<T, V>, op.id.as<std::int32_t>() + begin, count,
                    op.dy.as<T>() + begin * hidden, op.dtable.as<Wide<T>>(), op.part.first,
                    op.dtable.rows(), hidden);
      }
    };
    const bool packed =
        hidden % kPack<T> == 0 && rows_aligned(op.dy, 16) && rows_aligned(op.dtable, 16);
    packed ? run.template operator()<kPack<T>>() : run.template operator()<1>();
  });
}

}  // namespace

void add_embedding_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EmbeddingForward, embedding_forward>());
  rows.push_back(row_of<EmbeddingBackward, embedding_backward>());
}

}  // namespace llmtrain::kernels::cuda
