#include "kernels/cuda/map.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/scale_rows.hpp"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, int V>
struct ScalePacks {
  static constexpr int kWidth = V;
  Rows<const T> x;
  const Wide<T>* weight;
  Rows<T> y;
  __device__ void operator()(std::int64_t row, std::int64_t col) const {
    auto pack = load_pack<V>(x.row(row) + col);
    for (int i = 0; i < V; ++i) pack.x[i] = narrow<T>(weight[row] * widen(pack.x[i]));
    store_pack(y.row(row) + col, pack);
  }
};

void scale_rows(const KernelCtx& ctx, const ScaleRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    MapShape shape(op.x, op.y);
    // Each row has its own factor: never one long row.
    shape.rows = op.x.rows();
    shape.cols = op.x.cols();
    const auto run = [&]<int V>() {
      map(ctx, shape,
          ScalePacks<T, V>{Rows<const T>(op.x), op.weight.as<const Wide<T>>(), Rows<T>(op.y)});
    };
    const bool packed =
        shape.cols % kPack<T> == 0 && rows_aligned(op.x, 16) && rows_aligned(op.y, 16);
    packed ? run.template operator()<kPack<T>>() : run.template operator()<1>();
  });
}

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// A warp per row.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Rows<const T> x, const Wide<T>* weight, Rows<const T> dy, Rows<T> dx,
                    Wide<T>* dweight, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Wide<T> factor = weight[row];
  Wide<T> sum = 0;
  for (std::int64_t j = std::int64_t{lane} * V; j < cols; j += 32 * V) {
    const auto value = load_pack<V>(x.row(row) + j);
    auto gradient = load_pack<V>(dy.row(row) + j);
    for (int i = 0; i < V; ++i) {
      const Wide<T> g = widen(gradient.x[i]);
      sum += g * widen(value.x[i]);
      gradient.x[i] = narrow<T>(factor * g);
    }
    store_pack(dx.row(row) + j, gradient);
  }
  sum = sum_of_lanes(sum);
  if (lane == 0) dweight[row] = sum;
}

void scale_rows_backward(const KernelCtx& ctx, const ScaleRowsBackward& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    const std::int64_t rows = op.x.rows(), cols = op.x.cols();
    const bool packed = cols % kPack<T> == 0 && rows_aligned(op.x, 16) && rows_aligned(op.dy, 16) &&
                        rows_aligned(op.dx, 16);
    launch_grid(ctx, {static_cast<unsigned>(ceil_div(rows, kWarps)), kThreads},
                packed ? backward_kernel<T, kPack<T>> : backward_kernel<T, 1>, Rows<const T>(op.x),
                op.weight.as<const Wide<T>>(), Rows<const T>(op.dy), Rows<T>(op.dx),
                op.dweight.as<Wide<T>>(), rows, cols);
  });
}

}  // namespace

void add_scale_rows_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ScaleRows, scale_rows>());
  rows.push_back(row_of<ScaleRowsBackward, scale_rows_backward>());
}

}  // namespace llmtrain::kernels::cuda
