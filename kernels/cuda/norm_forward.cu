#include "kernels/cuda/norm_rows.cuh"

namespace llmtrain::kernels::cuda {

namespace {

template <class T>
struct ForwardOperands {
  std::int64_t count;
  HeadRows<const T> x, residual;
  HeadRows<T> sum, y;
  Affine<T> weight, bias;
  Wide<T>*mean, *rstd;
  Wide<T> eps, weight_offset;
};

/// Writes s = x + residual and returns it as it was rounded.
template <class T, int V>
__device__ __forceinline__ Bits<T, V> add_residual(const Bits<T, V>& x, const Bits<T, V>& residual,
                                                   T* sum, bool stores) {
  Wide<T> exact[V], of_residual[V];
  widen_bits<T>(x, exact);
  widen_bits<T>(residual, of_residual);
  for (int i = 0; i < V; ++i) exact[i] += of_residual[i];
  const auto s = narrow_bits<T>(exact);
  if (stores) store_pack(sum, s);
  return s;
}

/// y of a pack of s; kBare: without mean and bias.
template <bool kBare, int V, class T, class W>
__device__ __forceinline__ Bits<T, V> normalize(const W (&s)[V], W mean, W rstd, W offset,
                                                const W (&weight)[V], const W (&bias)[V]) {
  W y[V];
  for (int e = 0; e < V; ++e) {
    y[e] = (kBare ? s[e] : s[e] - mean) * rstd * (offset + weight[e]);
    if constexpr (!kBare) y[e] += bias[e];
  }
  return narrow_bits<T>(y);
}

template <class T, class W>
__device__ __forceinline__ void keep_statistics(const ForwardOperands<T>& op, std::int64_t i,
                                                W mean, W rstd) {
  if (op.mean != nullptr) op.mean[i] = mean;
  op.rstd[i] = rstd;
}

/// Rows that registers hold: read once, and the weights beside them. kBare: without mean and bias,
/// and without their instructions, for which such rows would wait.
template <class T, class Walk, bool kBare>
__global__ void __launch_bounds__(Walk::kBlock, Walk::kMinBlocks)
    forward_rows(ForwardOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth, kSlots = Walk::kSlots;
  __shared__ W of_warps[2][32];
  const auto [i, live] = walk.place(op.count);
  Bits<T, V> held[kSlots];
  walk.load(op.x.at(i), held);
  const bool has_residual = op.residual.data != nullptr;
  Bits<T, V> residual[kSlots];
  if (has_residual) walk.load(op.residual.at(i), residual);
  Bits<T, V> weights[kSlots], biases[kSlots];
  walk.load(op.weight, weights);
  if constexpr (!kBare) walk.load(op.bias, biases);
  if (has_residual) {
    T* const sum = op.sum.at(i);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      held[k] = add_residual<T, V>(held[k], residual[k], sum + walk.column(k), live && walk.has(k));
    }
  }
  W s[kSlots][V];
#pragma unroll
  for (int k = 0; k < kSlots; ++k) widen_bits<T>(held[k], s[k]);

  const auto width = static_cast<W>(walk.width);
  W mean = 0;
  if (!kBare && op.mean != nullptr) {
    W sum = 0;
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      for (int e = 0; e < V; ++e) sum += s[k][e];
    }
    mean = walk.sum(sum, of_warps[0]) / width;
  }
  W square = 0;
#pragma unroll
  for (int k = 0; k < kSlots; ++k) {
    for (int e = 0; e < V; ++e) {
      W centred = s[k][e];  // zero beyond the row
      if constexpr (!kBare) centred = walk.has(k) ? centred - mean : W{0};
      square += centred * centred;
    }
  }
  const W rstd = 1 / std::sqrt(walk.sum(square, of_warps[1]) / width + op.eps);
  if (!live) return;
  if (walk.column(0) == 0) keep_statistics(op, i, mean, rstd);
  T* const y = op.y.at(i);
#pragma unroll
  for (int k = 0; k < kSlots; ++k) {
    if (!walk.has(k)) break;
    W weight[V], bias[V] = {};
    op.weight.widen(walk.column(k), weights[k], weight);
    if (!kBare && op.bias.data != nullptr) op.bias.widen(walk.column(k), biases[k], bias);
    store_pack(y + walk.column(k),
               normalize<kBare, V, T>(s[k], mean, rstd, op.weight_offset, weight, bias));
  }
}

/// Rows that are read again for every pass.
template <class T, class Walk>
__global__ void __launch_bounds__(Walk::kBlock)
    forward_long_rows(ForwardOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth;
  __shared__ W of_warps[2][32];
  const auto [i, live] = walk.place(op.count);
  const bool has_residual = op.residual.data != nullptr;
  const T* const x = op.x.at(i);
  const T* const s = has_residual ? op.sum.at(i) : x;
  if (has_residual && live) {
    walk.for_packs([&](int j) {
      add_residual<T, V>(load_bits<V>(x + j), load_bits<V>(op.residual.at(i) + j), op.sum.at(i) + j,
                         true);
    });
  }
  const auto width = static_cast<W>(walk.width);
  W mean = 0;
  if (op.mean != nullptr) {
    W sum = 0;
    walk.for_packs([&](int j) {
      W of_s[V];
      widen_bits<T>(load_bits<V>(s + j), of_s);
      for (int e = 0; e < V; ++e) sum += of_s[e];
    });
    mean = walk.sum(sum, of_warps[0]) / width;
  }
  W square = 0;
  walk.for_packs([&](int j) {
    W of_s[V];
    widen_bits<T>(load_bits<V>(s + j), of_s);
    for (int e = 0; e < V; ++e) {
      const W centred = of_s[e] - mean;
      square += centred * centred;
    }
  });
  const W rstd = 1 / std::sqrt(walk.sum(square, of_warps[1]) / width + op.eps);
  if (!live) return;
  if (walk.column(0) == 0) keep_statistics(op, i, mean, rstd);
  T* const y = op.y.at(i);
  walk.for_packs([&](int j) {
    W of_s[V], weight[V], bias[V] = {};
    widen_bits<T>(load_bits<V>(s + j), of_s);
    op.weight.load(j, weight);
    if (op.bias.data != nullptr) op.bias.load(j, bias);
    store_pack(y + j, normalize<false, V, T>(of_s, mean, rstd, op.weight_offset, weight, bias));
  });
}

}  // namespace

void norm_forward(const KernelCtx& ctx, const NormForward& op, const View&) {
  const NormRows rows = op.norms();
  with_type(op.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const ForwardOperands<T> operands{
        .count = rows.count(op.x),
        .x = {op.x, rows},
        .residual = {op.residual, rows},
        .sum = {op.sum, rows},
        .y = {op.y, rows},
        .weight = Affine<T>(op.weight),
        .bias = Affine<T>(op.bias),
        .mean = op.kind == NormKind::layer_norm ? op.mean.as<W>() : nullptr,
        .rstd = op.rstd.as<W>(),
        .eps = static_cast<W>(op.eps),
        .weight_offset = static_cast<W>(op.weight_offset)};
    const bool packed =
        packs_fit<T>(rows.width, op.x, op.residual, op.sum, op.y, op.weight, op.bias);
    with_walk<T>(operands.count, rows.width, packed, [&](const auto& walk, unsigned blocks) {
      using Walk = std::decay_t<decltype(walk)>;
      const auto kernel = [bare = operands.mean == nullptr && operands.bias.data == nullptr] {
        if constexpr (Walk::kCached) {
          return bare ? forward_rows<T, Walk, true> : forward_rows<T, Walk, false>;
        } else {
          return forward_long_rows<T, Walk>;
        }
      }();
      launch_grid(ctx, {blocks, Walk::kBlock}, kernel, operands, walk);
    });
  });
}

}  // namespace llmtrain::kernels::cuda
