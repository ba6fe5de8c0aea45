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

/// With n = (s - mean) rstd and g = dy weight: ds = rstd (g - mean(g) - n mean(g n)), without
/// mean(g) for rms_norm.
template <class T, class Walk>
__global__ void __launch_bounds__(Walk::kBlock, Walk::kMinBlocks)
    input_grad_rows(InputGradOperands<T> op, Walk walk) {
  using W = Wide<T>;
  constexpr int V = Walk::kWidth;
  __shared__ W of_warps[2][32];
  // Lanes without a row look at the last one and write nothing.
  const std::int64_t row = walk.row();
  const bool live = row < op.count;
  const std::int64_t i = live ? row : op.count - 1;
  const T* const dy = op.dy.at(i);
  const T* const s = op.s.at(i);
  const bool has_dsum = op.dsum.data != nullptr;
  const T* const dsum = has_dsum ? op.dsum.at(i) : nullptr;

  // All is read before anything is written: dx may be dy or dsum.
  Pack<T, V> held_dy[Walk::kSlots], held_s[Walk::kSlots], held_dsum[Walk::kSlots];
  if constexpr (Walk::kCached) {
    walk.load(dy, held_dy);
    walk.load(s, held_s);
    if (has_dsum) walk.load(dsum, held_dsum);
  }
  const bool centred = op.mean != nullptr;
  const W mean = centred ? op.mean[i] : W{0};
  const W rstd = op.rstd[i];
  // f(slot, column, g, n) of a pack.
  const auto for_terms = [&](const auto& f) {
    walk.for_packs([&](int k, int j) {
      Pack<T, V> dys, ss;
      if constexpr (Walk::kCached) {
        dys = held_dy[k];
        ss = held_s[k];
      } else {
        dys = load_pack<V>(dy + j);
        ss = load_pack<V>(s + j);
      }
      W g[V], n[V];
      op.weight.load(j, g);
      for (int e = 0; e < V; ++e) {
        g[e] = widen(dys.x[e]) * (op.weight_offset + g[e]);
        n[e] = (widen(ss.x[e]) - mean) * rstd;
      }
      f(k, j, g, n);
    });
  };

  W sum_g = 0, sum_gn = 0;
  for_terms([&](int, int, const W(&g)[V], const W(&n)[V]) {
    for (int e = 0; e < V; ++e) {
      sum_g += g[e];
      sum_gn += g[e] * n[e];
    }
  });
  const auto width = static_cast<W>(walk.width);
  const W mean_g = centred ? walk.sum(sum_g, of_warps[0]) / width : W{0};
  const W mean_gn = walk.sum(sum_gn, of_warps[1]) / width;
  if (!live) return;
  T* const dx = op.dx.at(i);
  for_terms([&](int k, int j, const W(&g)[V], const W(&n)[V]) {
    Pack<T, V> added, result;
    if constexpr (Walk::kCached) {
      added = held_dsum[k];
    } else if (has_dsum) {
      added = load_pack<V>(dsum + j);
    }
    for (int e = 0; e < V; ++e) {
      W ds = rstd * (g[e] - mean_g - n[e] * mean_gn);
      if (has_dsum) ds += widen(added.x[e]);
      result.x[e] = narrow<T>(ds);
    }
    store_pack(dx + j, result);
  });
}

}  // namespace

void norm_input_grad(const KernelCtx& ctx, const NormInputGrad& op, const View&) {
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
      launch_grid(ctx, {blocks, Walk::kBlock}, input_grad_rows<T, Walk>, operands, walk);
    });
  });
}

}  // namespace llmtrain::kernels::cuda
