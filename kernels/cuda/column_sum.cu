#include "kernels/cuda/row_blocks.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, int V>
__global__ void __launch_bounds__(kRowBlockThreads)
    sum_row_blocks(Rows<const T> x, std::int64_t rows, std::int64_t cols, Wide<T>* partial) {
  const RowBlockPart part(cols / V);
  const int count = part.count(rows);
  if (count <= 0) return;
  const T* at = x.row(part.begin()) + part.pack * V;
  Wide<T> sums[V] = {};
#pragma unroll 16
  for (int i = 0; i < count; ++i, at += x.stride) {
    Wide<T> values[V];
    widen_bits<T>(load_bits<V>(at), values);
    for (int e = 0; e < V; ++e) sums[e] += values[e];
  }
  store_sums(partial + part.block * cols + part.pack * V, sums);
}

void column_sum(const KernelCtx& ctx, const ColumnSum& op, const View& workspace) {
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  with_type(op.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    auto* const partial = workspace.as<W>();
    const std::int64_t blocks = num_row_blocks(rows);
    const auto first_stage = [&]<int V>() {
      launch_grid(ctx, {row_block_grid(blocks, cols / V), kRowBlockThreads}, sum_row_blocks<T, V>,
                  Rows<const T>(op.x), rows, cols, partial);
    };
    constexpr int kWidth = kRowBlockPack<T>;
    const bool packed = cols % kWidth == 0 && rows_aligned(op.x, kWidth * sizeof(T));
    packed ? first_stage.template operator()<kWidth>() : first_stage.template operator()<1>();
    join<W>(ctx, blocks, cols, partial, op.out.as<W>(), nullptr);
  });
}

}  // namespace

void add_column_sum_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ColumnSum, column_sum>());
}

}  // namespace llmtrain::kernels::cuda
