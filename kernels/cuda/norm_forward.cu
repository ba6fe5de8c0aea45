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
template <int V, class T>
__device__ __forceinline__ Pack<T, V> add_residual(const Pack<T, V>& x, const Pack<T, V>& residual,
                                                   T* sum) {
  Pack<T, V> s;
  for (int i = 0; i < V; ++i) s.x[i] = narrow<T>(widen(x.x[i]) + widen(residual.x[i]));
  store_pack(sum, s);
  return s;
}

template <class T, class Walk>
__global__ void __launch_bounds__(Walk::kBlock, Walk::kMinBlocks)
    forward_rows(ForwardOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth;
  __shared__ W of_warps[2][32];
  // Lanes without a row look at the last one and write nothing.
  const std::int64_t row = walk.row();
  const bool live = row < op.count;
  const std::int64_t i = live ? row : op.count - 1;
  const bool has_residual = op.residual.data != nullptr;
  const T* const x = op.x.at(i);
  const T* const s = has_residual ? op.sum.at(i) : x;

  Pack<T, V> held[Walk::kSlots];
  if constexpr (Walk::kCached) {
    walk.load(x, held);
    if (has_residual) {
      Pack<T, V> residual[Walk::kSlots];
      walk.load(op.residual.at(i), residual);
      walk.for_packs([&](int k, int j) {
        if (live) held[k] = add_residual<V>(held[k], residual[k], op.sum.at(i) + j);
      });
    }
  } else if (has_residual && live) {
    walk.for_packs([&](int, int j) {
      add_residual<V>(load_pack<V>(x + j), load_pack<V>(op.residual.at(i) + j), op.sum.at(i) + j);
    });
  }
  const auto pack_at = [&](int k, int j) {
    if constexpr (Walk::kCached) return held[k];
    return load_pack<V>(s + j);
  };

  const auto width = static_cast<W>(walk.width);
  W mean = 0;
  if (op.mean != nullptr) {
    W sum = 0;
    walk.for_packs([&](int k, int j) {
      const auto pack = pack_at(k, j);
      for (int e = 0; e < V; ++e) sum += widen(pack.x[e]);
    });
    mean = walk.sum(sum, of_warps[0]) / width;
  }
  W square = 0;
  walk.for_packs([&](int k, int j) {
    const auto pack = pack_at(k, j);
    for (int e = 0; e < V; ++e) {
      const W centred = widen(pack.x[e]) - mean;
      square += centred * centred;
    }
  });
  const W rstd = 1 / std::sqrt(walk.sum(square, of_warps[1]) / width + op.eps);
  if (!live) return;
  if ((threadIdx.x & (walk.group() - 1)) == 0) {
    if (op.mean != nullptr) op.mean[i] = mean;
    op.rstd[i] = rstd;
  }
  T* const y = op.y.at(i);
  walk.for_packs([&](int k, int j) {
    const auto pack = pack_at(k, j);
    W weight[V], bias[V] = {};
    op.weight.load(j, weight);
    const bool has_bias = op.bias.data != nullptr;
    if (has_bias) op.bias.load(j, bias);
    Pack<T, V> result;
    for (int e = 0; e < V; ++e) {
      W value = (widen(pack.x[e]) - mean) * rstd * (op.weight_offset + weight[e]);
      if (has_bias) value += bias[e];
      result.x[e] = narrow<T>(value);
    }
    store_pack(y + j, result);
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
      launch_grid(ctx, {blocks, Walk::kBlock}, forward_rows<T, Walk>, operands, walk);
    });
  });
}

}  // namespace llmtrain::kernels::cuda
