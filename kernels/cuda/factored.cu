// Second moments of rows and columns, with the reference's bits.
#include <bit>

#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/row_blocks.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/run_sums.cuh"
#include "kernels/cuda/update.cuh"
#include "kernels/factored.hpp"

namespace llmtrain::kernels::cuda {

namespace {

// ---- Sums ---------------------------------------------------------------------------------------

/// sums[k chunks + c, j] over chunk c of the rows of matrix k: a thread per pack of columns.
template <class T, int V>
__global__ void __launch_bounds__(kRowBlockThreads)
    square_columns(const T* x, Matrices shape, std::int64_t chunks, double* sums) {
  const std::int64_t packs = shape.columns / V;
  const std::int64_t item = std::int64_t{blockIdx.x} * kRowBlockThreads + threadIdx.x;
  const std::int64_t chunk = item / packs, column = (item - chunk * packs) * V;
  if (chunk >= shape.count * chunks) return;
  const std::int64_t matrix = chunk / chunks;
  const std::int64_t first = (chunk - matrix * chunks) * ColumnSquares::kChunk;
  const int count =
      static_cast<int>(std::min(shape.rows - first, std::int64_t{ColumnSquares::kChunk}));
  const T* at = x + (matrix * shape.rows + first) * shape.columns + column;
  double of_chunk[V] = {};
#pragma unroll 8
  for (int i = 0; i < count; ++i, at += shape.columns) {
    const auto pack = load_pack<V>(at);
    for (int e = 0; e < V; ++e) {
      const auto value = static_cast<double>(pack.x[e]);
      of_chunk[e] += value * value;
    }
  }
  store_sums(sums + chunk * shape.columns + column, of_chunk);
}

__global__ void __launch_bounds__(kJoinColumns* kJoinWarps)
    join_chunks_of_columns(const double* sums, std::int64_t chunks, std::int64_t columns,
                           double* out) {
  const std::int64_t tiles = ceil_div(columns, kJoinColumns);
  const std::int64_t matrix = blockIdx.x / tiles;
  join_columns(sums + matrix * chunks * columns, out + matrix * columns, false,
               (blockIdx.x - matrix * tiles) * kJoinColumns, chunks, columns);
}

/// A thread block per row, whose threads are the lanes.
template <class T>
__global__ void __launch_bounds__(RowTotals::kLanes)
    total_rows(const T* x, std::int64_t each, double* out) {
  __shared__ double lanes[RowTotals::kLanes];
  const T* const own = x + blockIdx.x * each;
  const auto lane = static_cast<int>(threadIdx.x);
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = lane; i < each; i += RowTotals::kLanes) sum += static_cast<double>(own[i]);
  lanes[lane] = sum;
  for (int step = RowTotals::kLanes / 2; step > 0; step /= 2) {
    __syncthreads();
    if (lane < step) lanes[lane] += lanes[lane + step];
  }
  if (lane == 0) out[blockIdx.x] = lanes[0];
}

/// Masters that are not whole, as numbers.
struct NumbersOfHalves {
  using Type = float;
  Masters<float> masters;
  template <int V>
  __device__ Pack<float, V> load(std::int64_t i) const {
    return masters.load<V>(i);
  }
  __device__ bool takes_packs(std::int64_t i) const {
    constexpr std::size_t kHalves = kPack<float> * sizeof(std::uint16_t);
    return lies_at(static_cast<const bf16*>(masters.copy) + i, kHalves) &&
           (masters.remainder == nullptr || lies_at(masters.remainder + i, kHalves));
  }
};

// ---- Tiles --------------------------------------------------------------------------------------

constexpr int kTileRows = 64, kTileWarps = 8, kTileThreads = 32 * kTileWarps;

/// Thread blocks for all tiles of matrices, with V columns to a pack.
struct TileGrid {
  unsigned across, down, matrices;

  TileGrid(const Matrices& shape, int V)
      : across(static_cast<unsigned>(ceil_div(shape.columns, std::int64_t{32} * V))),
        down(static_cast<unsigned>(ceil_div(shape.rows, kTileRows))),
        matrices(static_cast<unsigned>(shape.count)) {}
  Grid grid() const { return {across * down * matrices, kTileThreads}; }
};

/// The thread block's kTileRows rows x 32 packs of columns, of which each warp takes every
/// kTileWarps-th row and each lane the same columns, so that it needs their values but once.
template <int V>
struct MatrixTile {
  std::int64_t matrix;
  std::int64_t row;  // the first, among those of all matrices
  int rows;
  std::int64_t column;  // this thread's first, in the matrix
  std::int64_t columns;

  __device__ MatrixTile(const Matrices& shape, const TileGrid& tiles) : columns(shape.columns) {
    const unsigned band = blockIdx.x / tiles.across, of_matrix = band / tiles.down;
    const std::int64_t first = std::int64_t{band - of_matrix * tiles.down} * kTileRows;
    matrix = of_matrix;
    row = matrix * shape.rows + first;
    rows = static_cast<int>(std::min(shape.rows - first, std::int64_t{kTileRows}));
    column = (std::int64_t{blockIdx.x - band * tiles.across} * 32 + threadIdx.x % 32) * V;
  }
  __device__ bool has_columns() const { return column < columns; }
  /// Of row i of the tile.
  __device__ std::int64_t element(int i) const { return (row + i) * columns + column; }
  /// Of `values` of all columns, those of this thread.
  template <class T>
  __device__ Pack<T, V> of_columns(const T* values) const {
    if (!has_columns()) return {};
    return load_pack<V>(values + matrix * columns + column);
  }
};

/// Columns that a thread takes at once; views are of elements, or of a value for each column.
template <class... Views>
int column_width(const Matrices& shape, const Views&... views) {
  const int width = MapShape(views...).width;
  return shape.columns % width == 0 ? width : 1;
}

/// Only the numbers of `op` are read.
template <class T, int V>
__global__ void __launch_bounds__(kTileThreads)
    scale_tiles(FactoredScale op, TileGrid tiles, const T* x, const T* rows, const double* totals,
                const T* columns, const UpdateDecision* decision, T* y) {
  if (decision->apply == 0) return;
  const MatrixTile<V> tile(op.shape, tiles);
  __shared__ T factors[kTileRows];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < tile.rows) {
    factors[thread] = rows == nullptr
                          ? T{1}
                          : FactoredScale::row_factor(rows[tile.row + thread],
                                                      static_cast<T>(op.mean(totals[tile.matrix])));
  }
  __syncthreads();
  if (!tile.has_columns()) return;
  auto of_columns = tile.of_columns(columns);
  for (T& value : of_columns.x) value = FactoredScale::column_factor(value);
  const T scale = op.is_gradient ? static_cast<T>(decision->grad_scale) : T{1};
  for (int i = thread / 32; i < tile.rows; i += kTileWarps) {
    auto pack = load_pack<V>(x + tile.element(i));
    for (int e = 0; e < V; ++e) pack.x[e] = pack.x[e] * scale * factors[i] * of_columns.x[e];
    store_pack(y + tile.element(i), pack);
  }
}

// ---- Covers -------------------------------------------------------------------------------------

template <class T>
__device__ T larger(T a, T b) {
  return a < b ? b : a;
}

/// Raises *to, which other thread blocks raise too. Of numbers that are not negative the larger has
/// the larger bits, and the largest does not depend on who comes first.
template <class T>
__device__ void raise(T* to, T value) {
  using Bits = std::conditional_t<std::is_same_v<T, double>, unsigned long long, unsigned>;
  atomicMax(reinterpret_cast<Bits*>(to), std::bit_cast<Bits>(value));
}

/// What bounds are raised from: 0, which they are at least, or what stays.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    begin_maxima(const T* old, T* now, std::int64_t count, const UpdateDecision* decision) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i < count) now[i] = decision->apply == 0 ? old[i] : T{0};
}

template <class T, int V>
__global__ void __launch_bounds__(kTileThreads)
    raise_maxima(Matrices shape, TileGrid tiles, const T* g, const T* rows, const T* columns,
                 const UpdateDecision* decision, T* new_rows, T* new_columns) {
  if (decision->apply == 0) return;
  const MatrixTile<V> tile(shape, tiles);
  const auto lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto of_columns = tile.of_columns(columns);
  const auto scale = static_cast<T>(decision->grad_scale);
  Pack<T, V> largest = {};
  for (int i = warp; i < tile.rows; i += kTileWarps) {
    T of_row = 0;
    if (tile.has_columns()) {
      const auto pack = load_pack<V>(g + tile.element(i));
      for (int e = 0; e < V; ++e) {
        const T column = of_columns.x[e], row = rows == nullptr ? column : rows[tile.row + i];
        const T bound = covered(row, column, pack.x[e] * scale);
        largest.x[e] = larger(largest.x[e], bound);
        of_row = larger(of_row, bound);
      }
    }
    if (rows == nullptr) continue;
    for (int step = 16; step > 0; step /= 2) {
      of_row = larger(of_row, __shfl_xor_sync(0xffffffffu, of_row, step));
    }
    if (lane == 0) raise(new_rows + tile.row + i, of_row);
  }
  __shared__ Pack<T, V> of_warps[kTileWarps][32];
  of_warps[warp][lane] = largest;
  __syncthreads();
  if (warp != 0 || !tile.has_columns()) return;
  for (int e = 0; e < V; ++e) {
    for (int w = 1; w < kTileWarps; ++w) {
      largest.x[e] = larger(largest.x[e], of_warps[w][lane].x[e]);
    }
    raise(new_columns + tile.matrix * tile.columns + tile.column + e, largest.x[e]);
  }
}

/// Only the numbers of `op` are read.
template <class T, int V>
__global__ void __launch_bounds__(kTileThreads)
    cover_tiles(CoverScale op, TileGrid tiles, const T* g, const T* rows, const T* columns,
                const UpdateDecision* decision, T* u) {
  if (decision->apply == 0) return;
  const MatrixTile<V> tile(op.shape, tiles);
  if (!tile.has_columns()) return;
  const auto of_columns = tile.of_columns(columns);
  const auto scale = static_cast<T>(decision->grad_scale), eps = static_cast<T>(op.eps);
  for (int i = static_cast<int>(threadIdx.x) / 32; i < tile.rows; i += kTileWarps) {
    auto pack = load_pack<V>(g + tile.element(i));
    for (int e = 0; e < V; ++e) {
      const T column = of_columns.x[e], row = rows == nullptr ? column : rows[tile.row + i];
      const T x = pack.x[e] * scale;
      pack.x[e] = x * (T{1} / std::sqrt(covered(row, column, x) + eps));
    }
    store_pack(u + tile.element(i), pack);
  }
}

// ---- Rows of the table --------------------------------------------------------------------------

void column_squares(const KernelCtx& ctx, const ColumnSquares& op, const View& workspace) {
  const Matrices& shape = op.shape;
  const std::int64_t chunks = ColumnSquares::chunks(shape.rows);
  const View& sums = chunks > 1 ? workspace : op.out;
  const int width = rows_aligned(sums, 16) ? column_width(shape, op.x) : 1;
  with_master_type(op.x.dtype, width, [&]<class T, int V>() {
    const std::int64_t items = shape.count * chunks * (shape.columns / V);
    launch_grid(ctx, {static_cast<unsigned>(ceil_div(items, kRowBlockThreads)), kRowBlockThreads},
                square_columns<T, V>, op.x.as<const T>(), shape, chunks, sums.as<double>());
  });
  if (chunks == 1) return;
  const std::int64_t tiles = shape.count * ceil_div(shape.columns, kJoinColumns);
  launch_grid(ctx, {static_cast<unsigned>(tiles), kJoinColumns * kJoinWarps},
              join_chunks_of_columns, workspace.as<double>(), chunks, shape.columns,
              op.out.as<double>());
}

void row_totals(const KernelCtx& ctx, const RowTotals& op, const View&) {
  const std::int64_t rows = op.out.numel();
  if (rows == 0) return;
  with_master_type(op.x.dtype, 1, [&]<class T, int V>() {
    launch_grid(ctx, {static_cast<unsigned>(rows), RowTotals::kLanes}, total_rows<T>,
                op.x.as<const T>(), op.x.numel() / rows, op.out.as<double>());
  });
}

void master_squares(const KernelCtx& ctx, const MasterSquares& op, const View& workspace) {
  const auto run = [&](const auto& numbers) {
    sum_runs(ctx, numbers, op.each(), op.out, workspace);
  };
  const View& whole = op.to.parameter;
  if (!whole.defined()) return run(NumbersOfHalves{Masters<float>(op.to)});
  whole.dtype == DType::f64 ? run(PlainNumbers<double>{whole.as<double>()})
                            : run(PlainNumbers<float>{whole.as<float>()});
}

void factored_scale(const KernelCtx& ctx, const FactoredScale& op, const View&) {
  const int width = column_width(op.shape, op.x, op.columns, op.y);
  with_master_type(op.x.dtype, width, [&]<class T, int V>() {
    const TileGrid tiles(op.shape, V);
    launch_grid(ctx, tiles.grid(), scale_tiles<T, V>, op, tiles, op.x.as<const T>(),
                op.rows.as<const T>(), op.totals.as<const double>(), op.columns.as<const T>(),
                op.decision.as<UpdateDecision>(), op.y.as<T>());
  });
}

void cover_maxima(const KernelCtx& ctx, const CoverMaxima& op, const View&) {
  const auto* const decision = op.decision.as<const UpdateDecision>();
  const int width = column_width(op.shape, op.g, op.columns);
  with_master_type(op.g.dtype, width, [&]<class T, int V>() {
    const auto begin = [&](const View& old, const View& now) {
      const auto blocks = static_cast<unsigned>(ceil_div(now.numel(), kMapThreads));
      launch_grid(ctx, {blocks, kMapThreads}, begin_maxima<T>, old.as<const T>(), now.as<T>(),
                  now.numel(), decision);
    };
    begin(op.columns, op.new_columns);
    if (op.rows.defined()) begin(op.rows, op.new_rows);
    const TileGrid tiles(op.shape, V);
    launch_grid(ctx, tiles.grid(), raise_maxima<T, V>, op.shape, tiles, op.g.as<const T>(),
                op.rows.as<const T>(), op.columns.as<const T>(), decision, op.new_rows.as<T>(),
                op.new_columns.as<T>());
  });
}

void cover_scale(const KernelCtx& ctx, const CoverScale& op, const View&) {
  const int width = column_width(op.shape, op.g, op.columns, op.u);
  with_master_type(op.g.dtype, width, [&]<class T, int V>() {
    const TileGrid tiles(op.shape, V);
    launch_grid(ctx, tiles.grid(), cover_tiles<T, V>, op, tiles, op.g.as<const T>(),
                op.rows.as<const T>(), op.columns.as<const T>(), op.decision.as<UpdateDecision>(),
                op.u.as<T>());
  });
}

}  // namespace

void add_factored_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ColumnSquares, column_squares>());
  rows.push_back(row_of<RowTotals, row_totals>());
  rows.push_back(row_of<MasterSquares, master_squares>());
  rows.push_back(row_of<FactoredScale, factored_scale>());
  rows.push_back(row_of<CoverMaxima, cover_maxima>());
  rows.push_back(row_of<CoverScale, cover_scale>());
}

}  // namespace llmtrain::kernels::cuda
