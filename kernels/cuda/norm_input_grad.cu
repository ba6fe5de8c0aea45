#include "kernels/cuda/norm_rows.cuh"

namespace llmtrain::kernels::cuda {

namespace {

template <class T>
struct InputGradOperands {
  std::int64_t count;
  HeadRows<const T> dy, dsum, s;
  HeadRows<T> dx;
  Affine<T> weight;
  const Wide<T>*mean, *rstd;
  Wide<T> weight_offset;
};

/// A pack of g = dy weight and n = (s - mean) rstd; without kCentred the mean is zero.
template <bool kCentred, int V, class T, class W>
__device__ __forceinline__ void find_terms(const Bits<T, V>& dy, const Bits<T, V>& s, W mean,
                                           W rstd, W offset, const W (&weight)[V], W (&g)[V],
                                           W (&n)[V]) {
  widen_bits<T>(dy, g);
  widen_bits<T>(s, n);
  for (int e = 0; e < V; ++e) {
    g[e] *= offset + weight[e];
    n[e] = (kCentred ? n[e] - mean : n[e]) * rstd;
  }
}

/// Of a row, without mean_g for rms_norm.
template <class W>
struct RowMeans {
  W g = 0, gn = 0;
};

/// A pack of ds = rstd (g - mean(g) - n mean(g n)), and `added` on top.
template <bool kCentred, int V, class T, class W>
__device__ __forceinline__ Bits<T, V> gradient_of(const W (&g)[V], const W (&n)[V],
                                                  const RowMeans<W>& means, W rstd,
                                                  const Bits<T, V>& added) {
  W ds[V];
  widen_bits<T>(added, ds);
  for (int e = 0; e < V; ++e) {
    const W g_there = kCentred ? g[e] - means.g : g[e];
    ds[e] += rstd * (g_there - n[e] * means.gn);
  }
  return narrow_bits<T>(ds);
}

/// Rows that registers hold. All is read before anything is written: dx may be dy or dsum.
template <class T, class Walk, bool kCentred>
__global__ void __launch_bounds__(Walk::kBlock, Walk::kMinBlocks)
    input_grad_rows(InputGradOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth, kSlots = Walk::kSlots;
  __shared__ W of_warps[2][32];
  const auto [i, live] = walk.place(op.count);
  Bits<T, V> dy[kSlots], s[kSlots], dsum[kSlots] = {};
  walk.load(op.dy.at(i), dy);
  walk.load(op.s.at(i), s);
  if (op.dsum.data != nullptr) walk.load(op.dsum.at(i), dsum);
  Bits<T, V> weights[kSlots];
  walk.load(op.weight, weights);
  const W mean = kCentred ? op.mean[i] : W{0};
  const W rstd = op.rstd[i];
  // Beyond the row g is zero.
  W g[kSlots][V], n[kSlots][V];
  W sum_g = 0, sum_gn = 0;
#pragma unroll
  for (int k = 0; k < kSlots; ++k) {
    W weight[V] = {};
    if (walk.has(k)) op.weight.widen(walk.column(k), weights[k], weight);
    find_terms<kCentred, V, T>(dy[k], s[k], mean, rstd, op.weight_offset, weight, g[k], n[k]);
    for (int e = 0; e < V; ++e) {
      if constexpr (kCentred) sum_g += g[k][e];
      sum_gn += g[k][e] * n[k][e];
    }
  }
  const auto width = static_cast<W>(walk.width);
  RowMeans<W> means;
  if constexpr (kCentred) means.g = walk.sum(sum_g, of_warps[0]) / width;
  means.gn = walk.sum(sum_gn, of_warps[1]) / width;
  if (!live) return;
  T* const dx = op.dx.at(i);
#pragma unroll
  for (int k = 0; k < kSlots; ++k) {
    const auto result = gradient_of<kCentred, V, T>(g[k], n[k], means, rstd, dsum[k]);
    if (walk.has(k)) store_pack(dx + walk.column(k), result);
  }
}

/// Rows that are read again for every pass.
template <class T, class Walk>
__global__ void __launch_bounds__(Walk::kBlock)
    input_grad_long_rows(InputGradOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth;
  __shared__ W of_warps[2][32];
  const auto [i, live] = walk.place(op.count);
  const T* const dy = op.dy.at(i);
  const T* const s = op.s.at(i);
  const bool centred = op.mean != nullptr;
  const W mean = centred ? op.mean[i] : W{0};
  const W rstd = op.rstd[i];
  const auto find = [&](int j, W(&g)[V], W(&n)[V]) {
    W weight[V];
    op.weight.load(j, weight);
    find_terms<true, V, T>(load_bits<V>(dy + j), load_bits<V>(s + j), mean, rstd, op.weight_offset,
                           weight, g, n);
  };
  W sum_g = 0, sum_gn = 0;
  walk.for_packs([&](int j) {
    W g[V], n[V];
    find(j, g, n);
    for (int e = 0; e < V; ++e) {
      sum_g += g[e];
      sum_gn += g[e] * n[e];
    }
  });
  const auto width = static_cast<W>(walk.width);
  RowMeans<W> means;
  if (centred) means.g = walk.sum(sum_g, of_warps[0]) / width;
  means.gn = walk.sum(sum_gn, of_warps[1]) / width;
  if (!live) return;
  const bool has_dsum = op.dsum.data != nullptr;
  const T* const dsum = has_dsum ? op.dsum.at(i) : nullptr;
  T* const dx = op.dx.at(i);
  walk.for_packs([&](int j) {
    W g[V], n[V];
    find(j, g, n);
    Bits<T, V> added{};
    if (has_dsum) added = load_bits<V>(dsum + j);
    store_pack(dx + j, gradient_of<true, V, T>(g, n, means, rstd, added));
  });
}

}  // namespace

void norm_input_grad(const KernelCtx& ctx, const NormBackward& op) {
  const NormRows rows = op.norms();
  with_type(op.dy.dtype, [&]<class T>() {
    using W = Wide<T>;
    const InputGradOperands<T> operands{
        .count = rows.count(op.dy),
        .dy = {op.dy, rows},
        .dsum = {op.dsum, rows},
        .s = {op.s, rows},
        .dx = {op.dx, rows},
        .weight = Affine<T>(op.weight),
        .mean = op.kind == NormKind::layer_norm ? op.mean.as<W>() : nullptr,
        .rstd = op.rstd.as<W>(),
        .weight_offset = static_cast<W>(op.weight_offset)};
    const bool packed = packs_fit<T>(rows.width, op.dy, op.dsum, op.s, op.dx, op.weight);
    with_walk<T>(operands.count, rows.width, packed, [&](const auto& walk, unsigned blocks) {
      using Walk = std::decay_t<decltype(walk)>;
      const auto kernel = [centred = operands.mean != nullptr] {
        if constexpr (Walk::kCached) {
          return centred ? input_grad_rows<T, Walk, true> : input_grad_rows<T, Walk, false>;
        } else {
          return input_grad_long_rows<T, Walk>;
        }
      }();
      launch_grid(ctx, {blocks, Walk::kBlock}, kernel, operands, walk);
    });
  });
}

}  // namespace llmtrain::kernels::cuda
