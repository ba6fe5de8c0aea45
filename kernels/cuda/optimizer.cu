// Optimizer updates: one pass over memory each, with the reference's operations in the reference's
// order, so that they have its bits.
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/update.cuh"
#include "kernels/optimizer.hpp"
#include "kernels/update_scalars.hpp"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, int V>
struct ClipPacks {
  static constexpr int kWidth = V;
  Rows<T> g;
  double limit_of_gradients;
  const UpdateDecision* decision;  // or null
  __device__ void operator()(std::int64_t, std::int64_t i) const {
    const bool scaled = decision != nullptr;
    const auto limit =
        static_cast<T>(scaled ? limit_of_gradients * decision->loss_scale : limit_of_gradients);
    auto pack = load_pack<V>(g.data + i);
    for (int k = 0; k < V; ++k) {
      const T x = pack.x[k];
      if (scaled && x - x != 0) continue;
      const T raised = x < -limit ? -limit : x;  // comparisons let a NaN through
      pack.x[k] = limit < raised ? limit : raised;
    }
    store_pack(g.data + i, pack);
  }
};

/// One parameter of a list, with moments of S.
template <class T, class S>
struct AdamRow {
  Masters<T> masters;
  const T* gradient;
  S* m;
  S* v;
  AdamScalars<T> s;
  StateRounding rounding;

  template <int V>
  __device__ void update(std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    auto ms = load_state<T, V>(m, i), vs = load_state<T, V>(v, i);
    for (int k = 0; k < V; ++k) {
      T g = gs.x[k] * s.grad_scale;
      T p = ps.x[k];
      if (s.in_gradient) g += s.weight_decay * p;
      p *= s.kept_before;
      ms.x[k] = s.beta1 * ms.x[k] + s.one_minus_beta1 * g;
      vs.x[k] = s.beta2 * vs.x[k] + s.one_minus_beta2 * g * g;
      p -= s.step_size * ms.x[k] / (std::sqrt(vs.x[k]) / s.sqrt_bias_correction2 + s.eps);
      ps.x[k] = p * s.kept_after;
    }
    store_state(m, i, ms, rounding, 0, s.update);
    store_state(v, i, vs, rounding, 1, s.update);
    masters.store(i, ps, s.update);
  }
};

/// A thread block per chunk, of which a multiprocessor shall have four: with fewer too little is on
/// its way from memory. Only the numbers of `op` are read.
template <class T, class S>
__global__ void __launch_bounds__(kMapThreads, 4)
    adam_chunks(List<AdamUpdate::Row> list, AdamUpdate op, const UpdateDecision* decision,
                DType type_of_copies) {
  if (decision->apply == 0) return;
  const AdamUpdate::Row& row = list.row_at(blockIdx.x);
  const AdamRow<T, S> of{Masters<T>(row, type_of_copies),
                         static_cast<const T*>(row.gradient),
                         static_cast<S*>(row.m),
                         static_cast<S*>(row.v),
                         AdamScalars<T>(op, row.lr_scale, row.weight_decay, *decision),
                         row.state_rounding};
  constexpr std::size_t kStatePack = kPack<T> * sizeof(S);
  const bool packs = takes_packs<T>(row, type_of_copies) && lies_at(row.m, kStatePack) &&
                     lies_at(row.v, kStatePack);
  update_chunk<T>(of, row.place, packs);
}

template <class T, class D, int V>
struct StepPacks {
  static constexpr int kWidth = V;
  using Scalars = StepUpdateScalars<T>;
  StepUpdate op;  // its numbers
  const UpdateDecision* decision;
  Masters<T> masters;
  const D* direction;
  __device__ void operator()(const Scalars& s, std::int64_t i) const {
    const auto ds = load_pack<V>(direction + i);
    auto ps = masters.template load<V>(i);
    for (int k = 0; k < V; ++k) {
      ps.x[k] = s.apply(ps.x[k], static_cast<T>(widen(ds.x[k])));
    }
    masters.store(i, ps, s.update);
  }
};

void clip_by_value(const KernelCtx& ctx, const ClipByValue& op, const View&) {
  const MapShape shape(op.g);
  with_master_type(op.g.dtype, shape.width, [&]<class T, int V>() {
    map(ctx, shape, ClipPacks<T, V>{Rows<T>(op.g), op.limit, op.decision.as<UpdateDecision>()});
  });
}

void adam_update(const KernelCtx& ctx, const AdamUpdate& op, const View&) {
  const List<AdamUpdate::Row> list(op, op.tensors);
  const DType type_of_copies = op.tensors.front().to.compute_copy.dtype;
  const auto chunks = op.dtype() == DType::f64               ? adam_chunks<double, double>
                      : op.tensors.front().rounding.words.on ? adam_chunks<float, bf16>
                                                             : adam_chunks<float, float>;
  launch_grid(ctx, list.grid(kMapThreads), chunks, list, op, op.decision.as<UpdateDecision>(),
              type_of_copies);
}

void step_update(const KernelCtx& ctx, const StepUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const DType master = to.master_dtype();
  // A pack is 16 bytes of masters, whatever the direction's type.
  MapShape shape(to.gradient, to.parameter, to.compute_copy, to.remainder);
  if (shape.width != 1) shape.width = static_cast<int>(16 / size_of(master));
  with_type(to.gradient.dtype, [&]<class D>() {
    with_master_type(master, shape.width, [&]<class T, int V>() {
      launch_update(ctx, StepPacks<T, D, V>{op, op.decision.as<UpdateDecision>(), Masters<T>(to),
                                            to.gradient.as<D>()});
    });
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ClipByValue, clip_by_value>());
  rows.push_back(row_of<AdamUpdate, adam_update>());
  rows.push_back(row_of<StepUpdate, step_update>());
}

}  // namespace llmtrain::kernels::cuda
