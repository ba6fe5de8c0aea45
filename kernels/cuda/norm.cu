// Sums of weight gradients by row blocks, where no other kernel has them beside its own work.
#include "kernels/cuda/norm_rows.cuh"
#include "kernels/cuda/row_blocks.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/norm.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// A thread's pack of columns, from one norm of a matrix to the next; kHeads: a row has several.
template <class T, bool kHeads>
class HeadCursor {
 public:
  __device__ HeadCursor(const HeadRows<T>& rows, std::int64_t first, std::int64_t column)
      : at_(rows.at(first) + column),
        head_(static_cast<int>(first % rows.heads)),
        heads_(rows.heads),
        width_(rows.width),
        to_next_row_(rows.stride - (kHeads ? std::int64_t{rows.heads} * rows.width : 0)) {}
  __device__ T* operator*() const { return at_; }
  __device__ void advance() {
    if constexpr (!kHeads) {
      at_ += to_next_row_;
    } else {
      at_ += width_;
      if (++head_ == heads_) {
        head_ = 0;
        at_ += to_next_row_;
      }
    }
  }

 private:
  T* at_;
  int head_, heads_, width_;
  std::int64_t to_next_row_;
};

template <class T>
struct WeightGradOperands {
  std::int64_t count, rows_per_block;
  HeadRows<const T> dy, s;
  const Wide<T>*mean, *rstd;
  Wide<T>*weight_sums, *bias_sums;  // [row blocks, width]; bias_sums may be null
};

template <class T, int V, bool kHeads>
__global__ void __launch_bounds__(kRowBlockThreads) weight_grad_blocks(WeightGradOperands<T> op) {
  using W = Wide<T>;
  const int width = op.dy.width;
  const RowBlockPart part(width / V, op.rows_per_block);
  const int count = part.count(op.count);
  if (count <= 0) return;
  const std::int64_t begin = part.begin();
  HeadCursor<const T, kHeads> dy(op.dy, begin, part.pack * V), s(op.s, begin, part.pack * V);
  W weight_sums[V] = {}, bias_sums[V] = {};
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    W dys[V], ss[V];
    widen_bits<T>(load_bits<V>(*dy), dys);
    widen_bits<T>(load_bits<V>(*s), ss);
    const W mean = op.mean != nullptr ? op.mean[begin + i] : W{0};
    const W rstd = op.rstd[begin + i];
    for (int e = 0; e < V; ++e) {
      weight_sums[e] += dys[e] * ((ss[e] - mean) * rstd);
      bias_sums[e] += dys[e];
    }
    dy.advance();
    s.advance();
  }
  const std::int64_t at = part.block * width + part.pack * V;
  store_sums(op.weight_sums + at, weight_sums);
  if (op.bias_sums != nullptr) store_sums(op.bias_sums + at, bias_sums);
}

}  // namespace

void norm_weight_sums(const KernelCtx& ctx, const NormBackward& op, const View& workspace) {
  const NormRows rows = op.norms();
  const std::int64_t blocks = op.row_blocks();
  with_type(op.dy.dtype, [&]<class T>() {
    using W = Wide<T>;
    auto* const sums = workspace.as<W>();
    const WeightGradOperands<T> operands{
        .count = rows.count(op.dy),
        .rows_per_block = op.rows_per_block(),
        .dy = {op.dy, rows},
        .s = {op.s, rows},
        .mean = op.kind == NormKind::layer_norm ? op.mean.as<W>() : nullptr,
        .rstd = op.rstd.as<W>(),
        .weight_sums = sums,
        .bias_sums = op.dbias.defined() ? sums + blocks * rows.width : nullptr};
    const auto launch = [&]<int V>() {
      launch_grid(
          ctx, {row_block_grid(blocks, rows.width / V), kRowBlockThreads},
          rows.heads == 1 ? weight_grad_blocks<T, V, false> : weight_grad_blocks<T, V, true>,
          operands);
    };
    constexpr int kWidth = kRowBlockPack<T>;
    const bool packed = rows.width % kWidth == 0 && rows_aligned(op.dy, kWidth * sizeof(T)) &&
                        rows_aligned(op.s, kWidth * sizeof(T));
    packed ? launch.template operator()<kWidth>() : launch.template operator()<1>();
  });
}

void add_norm_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<NormForward, norm_forward>());
  rows.push_back(row_of<NormBackward, norm_backward>());
}

}  // namespace llmtrain::kernels::cuda
