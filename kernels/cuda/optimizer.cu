// Optimizer updates: one pass over memory each, with the reference's operations in the reference's
// order, so that they have its bits.
#include "kernels/cuda/list.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/update_scalars.hpp"
#include "lib/tensor/split_master.hpp"

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

/// The masters of an update, in whichever form they are, and their copies.
template <class T>
struct Masters {
  T* whole;                  // or null
  void* copy;                // or null
  std::uint16_t* remainder;  // or null
  DType copy_type;
  StochasticRounding rounding;

  explicit Masters(const UpdateOperands& to)
      : whole(to.parameter.as<T>()),
        copy(to.compute_copy.data),
        remainder(to.remainder.as<std::uint16_t>()),
        copy_type(to.compute_copy.dtype),
        rounding(to.rounding) {}
  __device__ Masters(const AdamUpdate::Row& row, DType type_of_copies)
      : whole(static_cast<T*>(row.parameter)),
        copy(row.compute_copy),
        remainder(static_cast<std::uint16_t*>(row.remainder)),
        copy_type(type_of_copies),
        rounding(row.rounding) {}

  template <int V>
  __device__ Pack<T, V> load(std::int64_t i) const {
    if (whole != nullptr) return load_pack<V>(whole + i);
    const auto rounded = load_pack<V>(static_cast<const bf16*>(copy) + i);
    Pack<T, V> joined;
    if (remainder == nullptr) {
      for (int k = 0; k < V; ++k) joined.x[k] = to_float(rounded.x[k]);
      return joined;
    }
    const auto low = load_pack<V>(remainder + i);
    for (int k = 0; k < V; ++k) joined.x[k] = join_master({rounded.x[k], low.x[k]});
    return joined;
  }
  /// `update`: the number of this one.
  template <int V>
  __device__ void store(std::int64_t i, const Pack<T, V>& values, std::uint64_t update) const {
    if (whole != nullptr) store_pack(whole + i, values);
    if (copy == nullptr) return;
    if (copy_type == DType::f32) return store_as<float>(i, values);
    if (copy_type == DType::f16) return store_as<f16>(i, values);
    if (rounding.on) return store_by_chance(i, values, update);
    Pack<bf16, V> rounded;
    Pack<std::uint16_t, V> low;
    for (int k = 0; k < V; ++k) {
      const MasterParts parts = split_master(static_cast<float>(values.x[k]));
      rounded.x[k] = parts.copy;
      low.x[k] = parts.remainder;
    }
    store_pack(static_cast<bf16*>(copy) + i, rounded);
    if (remainder != nullptr) store_pack(remainder + i, low);
  }
  template <class C, int V>
  __device__ void store_as(std::int64_t i, const Pack<T, V>& values) const {
    Pack<C, V> rounded;
    for (int k = 0; k < V; ++k) rounded.x[k] = narrow<C>(values.x[k]);
    store_pack(static_cast<C*>(copy) + i, rounded);
  }
  template <int V>
  __device__ void store_by_chance(std::int64_t i, const Pack<T, V>& values,
                                  std::uint64_t update) const {
    Pack<bf16, V> rounded;
    PhiloxWords words{};
    std::uint64_t block = ~std::uint64_t{0};
    for (int k = 0; k < V; ++k) {
      const std::uint64_t index = rounding.index(i + k);
      if (index / 4 != block) words = philox_block(rounding.key, update, index);
      block = index / 4;
      rounded.x[k] =
          round_stochastically(static_cast<float>(values.x[k]), word_of(words, index % 4));
    }
    store_pack(static_cast<bf16*>(copy) + i, rounded);
  }
};

/// One parameter of a list.
template <class T>
struct AdamRow {
  Masters<T> masters;
  const T* gradient;
  T* m;
  T* v;
  AdamScalars<T> s;
  bool decoupled;

  template <int V>
  __device__ void update(std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    auto ms = load_pack<V>(m + i), vs = load_pack<V>(v + i);
    for (int k = 0; k < V; ++k) {
      T g = gs.x[k] * s.grad_scale;
      T p = ps.x[k];
      if (decoupled) {
        p *= s.decay;
      } else {
        g += s.weight_decay * p;
      }
      ms.x[k] = s.beta1 * ms.x[k] + s.one_minus_beta1 * g;
      vs.x[k] = s.beta2 * vs.x[k] + s.one_minus_beta2 * g * g;
      ps.x[k] = p - s.step_size * ms.x[k] / (std::sqrt(vs.x[k]) / s.sqrt_bias_correction2 + s.eps);
    }
    store_pack(m + i, ms);
    store_pack(v + i, vs);
    masters.store(i, ps, s.update);
  }

  /// Elements [begin, end) by all threads, in packs where addresses allow it. begin is a multiple
  /// of every pack.
  __device__ void update_range(bool packs, std::int64_t begin, std::int64_t end) const {
    constexpr int kWidth = kPack<T>;
    std::int64_t rest = begin;
    if (packs) {
      rest = end - (end - begin) % kWidth;
      for (std::int64_t i = begin + threadIdx.x * kWidth; i < rest; i += kMapThreads * kWidth) {
        update<kWidth>(i);
      }
    }
    for (std::int64_t i = rest + threadIdx.x; i < end; i += kMapThreads) update<1>(i);
  }
};

/// True when whole packs of T lie at multiples of their size, in copies and halves too.
template <class T>
__device__ bool takes_packs(const AdamUpdate::Row& row, DType type_of_copies) {
  const auto lies_at = [](const void* data, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;  // null lies everywhere
  };
  return lies_at(row.parameter, 16) && lies_at(row.gradient, 16) && lies_at(row.m, 16) &&
         lies_at(row.v, 16) && lies_at(row.remainder, kPack<T> * sizeof(std::uint16_t)) &&
         lies_at(row.compute_copy, kPack<T> * size_of(type_of_copies));
}

/// A thread block per chunk. Only the numbers of `op` are read.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    adam_chunks(List<AdamUpdate::Row> list, AdamUpdate op, const UpdateDecision* decision,
                DType type_of_copies) {
  if (decision->apply == 0) return;
  const AdamUpdate::Row& row = list.row_at(blockIdx.x);
  const AdamRow<T> of{Masters<T>(row, type_of_copies),
                      static_cast<const T*>(row.gradient),
                      static_cast<T*>(row.m),
                      static_cast<T*>(row.v),
                      AdamScalars<T>(op, row.lr_scale, row.weight_decay, *decision),
                      op.decoupled};
  const std::int64_t begin = (blockIdx.x - row.place.first_chunk) * kListChunk;
  const std::int64_t left = row.place.numel - begin;
  of.update_range(takes_packs<T>(row, type_of_copies), begin,
                  begin + (left < kListChunk ? left : kListChunk));
}

template <class T, int V>
struct SgdPacks {
  static constexpr int kWidth = V;
  using Scalars = SgdScalars<T>;
  SgdUpdate op;  // its numbers
  const UpdateDecision* decision;
  Masters<T> masters;
  const T* gradient;
  T* momentum_buffer;  // or null
  __device__ void operator()(const Scalars& s, std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    Pack<T, V> bs;
    if (momentum_buffer != nullptr && !s.first) bs = load_pack<V>(momentum_buffer + i);
    for (int k = 0; k < V; ++k) {
      const T g = gs.x[k] * s.grad_scale + s.weight_decay * ps.x[k];
      T update = g;
      if (momentum_buffer != nullptr) {
        bs.x[k] = s.first ? g : s.momentum * bs.x[k] + s.one_minus_dampening * g;
        update = op.nesterov ? g + s.momentum * bs.x[k] : bs.x[k];
      }
      ps.x[k] -= s.lr * update;
    }
    if (momentum_buffer != nullptr) store_pack(momentum_buffer + i, bs);
    masters.store(i, ps, s.update);
  }
};

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
      ps.x[k] = s.decay * ps.x[k] + s.step_size * static_cast<T>(widen(ds.x[k]));
    }
    masters.store(i, ps, s.update);
  }
};

/// f over all packs where the decision applies. A thread forms the scalars once.
template <class F>
__global__ void __launch_bounds__(kMapThreads) update_kernel(F f, std::int64_t packs) {
  if (f.decision->apply == 0) return;
  const typename F::Scalars scalars(f.op, *f.decision);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < packs;
       i += std::int64_t{gridDim.x} * kMapThreads) {
    f(scalars, i * F::kWidth);
  }
}

template <class F>
void launch_update(const KernelCtx& ctx, const F& f) {
  const std::int64_t packs = f.op.to.numel() / F::kWidth;
  const auto blocks = static_cast<unsigned>(std::min(kMapBlocks, ceil_div(packs, kMapThreads)));
  launch_grid(ctx, {blocks, kMapThreads}, update_kernel<F>, f, packs);
}

/// Calls f.operator()<T, V>() for the type of a master or a gradient and the width of a pack.
template <class F>
void with_master_type(DType dtype, int width, const F& f) {
  if (dtype == DType::f64) {
    width == 1 ? f.template operator()<double, 1>() : f.template operator()<double, 2>();
  } else {
    width == 1 ? f.template operator()<float, 1>() : f.template operator()<float, 4>();
  }
}

void clip_by_value(const KernelCtx& ctx, const ClipByValue& op, const View&) {
  const MapShape shape(op.g);
  with_master_type(op.g.dtype, shape.width, [&]<class T, int V>() {
    map(ctx, shape, ClipPacks<T, V>{Rows<T>(op.g), op.limit, op.decision.as<UpdateDecision>()});
  });
}

void adam_update(const KernelCtx& ctx, const AdamUpdate& op, const View&) {
  const List<AdamUpdate::Row> list(op, op.tensors);
  const DType type_of_copies = op.tensors.front().to.compute_copy.dtype;
  launch_grid(ctx, list.grid(kMapThreads),
              op.dtype() == DType::f64 ? adam_chunks<double> : adam_chunks<float>, list, op,
              op.decision.as<UpdateDecision>(), type_of_copies);
}

void sgd_update(const KernelCtx& ctx, const SgdUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const MapShape shape(to.gradient, to.parameter, op.momentum_buffer, to.compute_copy,
                       to.remainder);
  with_master_type(to.gradient.dtype, shape.width, [&]<class T, int V>() {
    launch_update(ctx, SgdPacks<T, V>{op, op.decision.as<UpdateDecision>(), Masters<T>(to),
                                      to.gradient.as<T>(), op.momentum_buffer.as<T>()});
  });
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
  rows.push_back(row_of<SgdUpdate, sgd_update>());
  rows.push_back(row_of<StepUpdate, step_update>());
}

}  // namespace llmtrain::kernels::cuda
