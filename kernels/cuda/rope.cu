#include "kernels/attention.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/rows.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kRopeThreads = 256;
/// Heads of one row that a thread turns by the same angles.
constexpr int kRopeHeads = 4;

template <class T>
struct RopeOperands {
  std::int64_t rows, max_position;
  Rows<const T> x;
  Rows<T> y;
  const Wide<T>*cosine, *sine;
  const std::int32_t* position;
  int heads, head_dim, half;
  bool inverse;
};

/// One thread per row, pack of pairs and kRopeHeads heads. Without a row in the tables a pair
/// becomes NaN.
template <class T, int V>
__global__ void __launch_bounds__(kRopeThreads) turn_pairs(RopeOperands<T> op) {
  using W = Wide<T>;
  constexpr int kPart = V < kPack<W> ? V : kPack<W>;
  const int packs = op.half / V;
  const int groups = (op.heads + kRopeHeads - 1) / kRopeHeads;
  const std::int64_t item = std::int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  const std::int64_t row = item / (packs * groups);
  if (row >= op.rows) return;
  const int in_row = static_cast<int>(item - row * (packs * groups));
  const int group = in_row / packs;
  const int i = (in_row - group * packs) * V;

  W cosine[V], sine[V];
  const std::int64_t position = op.position[row];
  const bool known = position >= 0 && position < op.max_position;
  const std::int64_t at = position * op.half + i;
  for (int part = 0; part < V; part += kPart) {
    Pack<W, kPart> c, s;
    if (known) {
      c = load_pack<kPart>(op.cosine + at + part);
      s = load_pack<kPart>(op.sine + at + part);
    }
    for (int k = 0; k < kPart; ++k) {
      cosine[part + k] = known ? c.x[k] : static_cast<W>(NAN);
      sine[part + k] = op.inverse ? -s.x[k] : s.x[k];
    }
  }
  const T* const x = op.x.row(row) + i;
  T* const y = op.y.row(row) + i;
  const int first = group * kRopeHeads;
  Pack<T, V> a[kRopeHeads], b[kRopeHeads];
#pragma unroll
  for (int h = 0; h < kRopeHeads; ++h) {
    const int head = std::min(first + h, op.heads - 1);
    a[h] = load_pack<V>(x + head * op.head_dim);
    b[h] = load_pack<V>(x + head * op.head_dim + op.half);
  }
#pragma unroll
  for (int h = 0; h < kRopeHeads; ++h) {
    if (first + h >= op.heads) break;
    W low[V], high[V];
    for (int k = 0; k < V; ++k) {
      const W p = widen(a[h].x[k]), q = widen(b[h].x[k]);
      low[k] = p * cosine[k] - q * sine[k];
      high[k] = q * cosine[k] + p * sine[k];
    }
    store_pack(y + (first + h) * op.head_dim, narrow_bits<T>(low));
    store_pack(y + (first + h) * op.head_dim + op.half, narrow_bits<T>(high));
  }
}

/// Copies the components that do not turn, one per thread.
template <class T>
__global__ void __launch_bounds__(kRopeThreads) copy_rest(RopeOperands<T> op) {
  const int rotary = 2 * op.half, rest = op.head_dim - rotary;
  const std::int64_t item = std::int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  const std::int64_t row = item / (op.heads * rest);
  if (row >= op.rows) return;
  const int in_row = static_cast<int>(item - row * (op.heads * rest));
  const int head = in_row / rest;
  const int column = head * op.head_dim + rotary + in_row - head * rest;
  op.y.row(row)[column] = op.x.row(row)[column];
}

void rope(const KernelCtx& ctx, const Rope& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const RopeOperands<T> operands{.rows = op.x.rows(),
                                   .max_position = op.cosine.rows(),
                                   .x = Rows<const T>(op.x),
                                   .y = Rows<T>(op.y),
                                   .cosine = op.cosine.as<W>(),
                                   .sine = op.sine.as<W>(),
                                   .position = op.position.as<std::int32_t>(),
                                   .heads = static_cast<int>(op.x.cols() / op.head_dim),
                                   .head_dim = static_cast<int>(op.head_dim),
                                   .half = static_cast<int>(op.rotary_dim / 2),
                                   .inverse = op.inverse};
    const auto queue = [&](auto kernel, std::int64_t items_of_row) {
      const std::int64_t blocks = ceil_div(operands.rows * items_of_row, kRopeThreads);
      launch_grid(ctx, {static_cast<unsigned>(blocks), kRopeThreads}, kernel, operands);
    };
    constexpr int V = kPack<T>;
    const std::int64_t groups = ceil_div(operands.heads, kRopeHeads);
    const bool packed = operands.half % V == 0 && op.head_dim % V == 0 && rows_aligned(op.x, 16) &&
                        rows_aligned(op.y, 16) && rows_aligned(op.cosine, 16) &&
                        rows_aligned(op.sine, 16);
    packed ? queue(turn_pairs<T, V>, operands.half / V * groups)
           : queue(turn_pairs<T, 1>, operands.half * groups);
    if (op.rotary_dim < op.head_dim && op.y.data != op.x.data) {
      queue(copy_rest<T>, operands.heads * (op.head_dim - op.rotary_dim));
    }
  });
}

}  // namespace

void add_rope_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Rope, rope>()); }

}  // namespace llmtrain::kernels::cuda
