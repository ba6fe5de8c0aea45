#include "kernels/attention.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/rows.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kMergeThreads = 256;

template <class W>
struct MergeOperands {
  std::int64_t rows, tq;
  int heads, head_dim;
  Rows<const W> part_out;
  Rows<W> out;
  const W* part_lse;
  W* lse;
};

/// One warp per row and head.
template <class W>
__global__ void __launch_bounds__(kMergeThreads) merge_heads(MergeOperands<W> op) {
  const std::int64_t item = (std::int64_t{blockIdx.x} * kMergeThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (item >= op.rows * op.heads) return;
  const std::int64_t row = item / op.heads, head = item - row * op.heads;
  const std::int64_t at = (row / op.tq * op.heads + head) * op.tq + row % op.tq;
  const W lse = op.lse[at], part_lse = op.part_lse[at];
  const W max = lse > part_lse ? lse : part_lse;
  if (max == -static_cast<W>(INFINITY)) return;  // neither saw anything
  const W weight = exp(lse - max), part_weight = exp(part_lse - max);
  const W sum = weight + part_weight;
  W* const out = op.out.row(row) + head * op.head_dim;
  const W* const part = op.part_out.row(row) + head * op.head_dim;
  for (int d = lane; d < op.head_dim; d += 32) {
    out[d] = weight / sum * out[d] + part_weight / sum * part[d];
  }
  __syncwarp();  // all lanes have read the old one
  if (lane == 0) op.lse[at] = max + log(sum);
}

void attention_merge(const KernelCtx& ctx, const AttentionMerge& op, const View&) {
  const std::int64_t rows = op.out.rows();
  if (rows == 0) return;
  const auto run = [&]<class W>() {
    const MergeOperands<W> operands{.rows = rows,
                                    .tq = rows / op.num_sequences,
                                    .heads = static_cast<int>(op.num_heads),
                                    .head_dim = static_cast<int>(op.out.cols() / op.num_heads),
                                    .part_out = Rows<const W>(op.part_out),
                                    .out = Rows<W>(op.out),
                                    .part_lse = op.part_lse.as<W>(),
                                    .lse = op.lse.as<W>()};
    const std::int64_t blocks = ceil_div(rows * op.num_heads * 32, kMergeThreads);
    launch_grid(ctx, {static_cast<unsigned>(blocks), kMergeThreads}, merge_heads<W>, operands);
  };
  op.out.dtype == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace

void add_attention_merge_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionMerge, attention_merge>());
}

}  // namespace llmtrain::kernels::cuda
