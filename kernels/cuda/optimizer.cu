// Gradient norms and optimizer updates: one pass over memory each, with the reference's operations
// in the reference's order, so that they have its bits.
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/workspace.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/update_scalars.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kNormThreads = 256;
/// Blocks of SquaredNorm that a thread block sums and joins: a subtree, because it is a power of 2.
constexpr std::int64_t kNormRun = kNormThreads / SquaredNorm::kLanes;
/// A thread block of a later level joins two values per thread.
constexpr std::int64_t kJoin = kJoinedValues;
constexpr int kJoinThreads = static_cast<int>(kJoin) / 2;

/// Adds by pairs of neighbours over `lanes` lanes; every lane gets the sum. A pair's sum does not
/// depend on which of the two adds.
template <class W>
__device__ W join_lanes(W sum, int first, int lanes) {
  for (int step = first; step < lanes; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

/// The tree over the thread block's warps, of each of which every lane holds the sum. Thread 0 gets
/// the result.
template <int threads>
__device__ double join_warps(double sum) {
  constexpr int kWarps = threads / 32;
  static_assert((kWarps & (kWarps - 1)) == 0 && kWarps <= 32);
  __shared__ double of_warp[kWarps];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return join_lanes(of_warp[threadIdx.x % kWarps], 1, kWarps);
}

/// runs[r] = sum of the squares of run r, which is kNormRun blocks. A thread sums a lane of a
/// block, 16 of them read 64 bytes at a time. A missing element or block counts as +0, which no sum
/// of squares notices: its bits stay.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    square_runs(const T* g, std::int64_t n, double* runs) {
  constexpr int kLanes = SquaredNorm::kLanes;
  constexpr int kSteps = static_cast<int>(SquaredNorm::kBlock) / kLanes;
  const std::int64_t block = blockIdx.x * kNormRun + threadIdx.x / kLanes;
  const std::int64_t first = block * SquaredNorm::kBlock + threadIdx.x % kLanes;
  T sum = 0;
  if ((block + 1) * SquaredNorm::kBlock <= n) {
#pragma unroll 16
    for (int step = 0; step < kSteps; ++step) {
      const T x = g[first + step * kLanes];
      sum += x * x;
    }
  } else {
    for (std::int64_t e = first; e < n; e += kLanes) sum += g[e] * g[e];
  }
  // The contract's tree over lanes begins with those 8 apart.
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  const double joined = join_warps<kNormThreads>(join_lanes(static_cast<double>(sum), kLanes, 32));
  if (threadIdx.x == 0) runs[blockIdx.x] = joined;
}

/// Sum of run `run`, which is kJoin of the `count` values that lie `stride` apart. Thread 0 gets
/// it.
__device__ double join_run(const double* values, std::int64_t count, std::int64_t stride,
                           std::int64_t run) {
  const std::int64_t first = run * kJoin + 2 * static_cast<std::int64_t>(threadIdx.x);
  const double a = first < count ? values[first * stride] : 0;
  const double b = first + 1 < count ? values[(first + 1) * stride] : 0;
  return join_warps<kJoinThreads>(join_lanes(a + b, 1, 32));
}

/// Joins every kJoin of the `count` values that lie `stride` apart. A thread block writes its sum
/// over the first of its own values, or to `out` when it is the only one.
__global__ void __launch_bounds__(kJoinThreads)
    join_runs(double* values, std::int64_t count, std::int64_t stride, double* out) {
  const double joined = join_run(values, count, stride, blockIdx.x);
  if (threadIdx.x != 0) return;
  *(gridDim.x == 1 ? out : values + blockIdx.x * kJoin * stride) = joined;
}

/// One thread block: there are as many squares as parameters have names. `sums` has room for one
/// of every kJoin. Only the numbers of `op` are read.
__global__ void __launch_bounds__(kJoinThreads)
    decide(DecideUpdate op, const double* squares, std::int64_t count, double* sums,
           const double* loss_sum, const StepScalars* scalars, UpdateDecision* decision) {
  double sum = 0;
  for (const double* values = squares; count > 0; values = sums) {
    const std::int64_t runs = ceil_div(count, kJoin);
    for (std::int64_t run = 0; run < runs; ++run) {
      sum = join_run(values, count, 1, run);
      __syncthreads();  // all have read: where sums are joined, this overwrites one of them
      if (threadIdx.x == 0) sums[run] = sum;
    }
    __syncthreads();
    count = runs == 1 ? 0 : runs;
  }
  if (threadIdx.x != 0) return;
  op.decide(sum, loss_sum == nullptr ? 0 : *loss_sum, scalars == nullptr ? op.lr : scalars->lr,
            *decision);
}

void squared_norm(const KernelCtx& ctx, const SquaredNorm& op, const View& workspace) {
  const std::int64_t n = op.g.numel();
  std::int64_t count = ceil_div(n, kNormRun * SquaredNorm::kBlock);
  auto* const runs = workspace.as<double>();
  const Grid grid{static_cast<unsigned>(count), kNormThreads};
  if (op.g.dtype == DType::f64) {
    launch_grid(ctx, grid, square_runs<double>, op.g.as<double>(), n, runs);
  } else {
    launch_grid(ctx, grid, square_runs<float>, op.g.as<float>(), n, runs);
  }
  auto* const out = op.out.as<double>();
  for (std::int64_t stride = 1;; stride *= kJoin) {
    const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(count, kJoin));
    launch_grid(ctx, {static_cast<unsigned>(blocks), kJoinThreads}, join_runs, runs, count, stride,
                out);
    if (blocks == 1) return;
    count = blocks;
  }
}

template <class T, int V>
struct ClipPacks {
  static constexpr int kWidth = V;
  Rows<T> g;
  T limit;
  __device__ void operator()(std::int64_t, std::int64_t i) const {
    auto pack = load_pack<V>(g.data + i);
    for (int k = 0; k < V; ++k) {
      const T x = pack.x[k];
      const T raised = x < -limit ? -limit : x;  // comparisons let a NaN through
      pack.x[k] = limit < raised ? limit : raised;
    }
    store_pack(g.data + i, pack);
  }
};

/// The rounded copy of a parameter, in either type; null data for none.
struct ComputeCopy {
  void* data;
  bool is_bf16;

  explicit ComputeCopy(const View& view) : data(view.data), is_bf16(view.dtype == DType::bf16) {}
  template <int V, class T>
  __device__ void write(std::int64_t i, const Pack<T, V>& values) const {
    if (data == nullptr) return;
    if (is_bf16) {
      Pack<bf16, V> rounded;
      for (int k = 0; k < V; ++k) rounded.x[k] = narrow<bf16>(values.x[k]);
      store_pack(static_cast<bf16*>(data) + i, rounded);
    } else {
      Pack<float, V> rounded;
      for (int k = 0; k < V; ++k) rounded.x[k] = static_cast<float>(values.x[k]);
      store_pack(static_cast<float*>(data) + i, rounded);
    }
  }
};

template <class T, int V>
struct AdamPacks {
  static constexpr int kWidth = V;
  using Scalars = AdamScalars<T>;
  AdamUpdate op;  // its numbers
  const UpdateDecision* decision;
  T* parameter;
  const T* gradient;
  T* m;
  T* v;
  ComputeCopy copy;
  __device__ void operator()(const Scalars& s, std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = load_pack<V>(parameter + i), ms = load_pack<V>(m + i), vs = load_pack<V>(v + i);
    for (int k = 0; k < V; ++k) {
      T g = gs.x[k] * s.grad_scale;
      T p = ps.x[k];
      if (op.decoupled) {
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
    store_pack(parameter + i, ps);
    copy.write(i, ps);
  }
};

template <class T, int V>
struct SgdPacks {
  static constexpr int kWidth = V;
  using Scalars = SgdScalars<T>;
  SgdUpdate op;  // its numbers
  const UpdateDecision* decision;
  T* parameter;
  const T* gradient;
  T* momentum_buffer;  // or null
  ComputeCopy copy;
  __device__ void operator()(const Scalars& s, std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = load_pack<V>(parameter + i);
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
    store_pack(parameter + i, ps);
    copy.write(i, ps);
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
  const std::int64_t packs = f.op.to.parameter.numel() / F::kWidth;
  const auto blocks = static_cast<unsigned>(std::min(kMapBlocks, ceil_div(packs, kMapThreads)));
  launch_grid(ctx, {blocks, kMapThreads}, update_kernel<F>, f, packs);
}

/// Calls f.operator()<T, V>() for the type of a master parameter and the width of a pack.
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
    map(ctx, shape, ClipPacks<T, V>{Rows<T>(op.g), static_cast<T>(op.limit)});
  });
}

void decide_update(const KernelCtx& ctx, const DecideUpdate& op, const View& workspace) {
  launch_grid(ctx, {1, kJoinThreads}, decide, op, op.squares.as<double>(), op.squares.numel(),
              workspace.as<double>(), op.loss_sum.as<double>(), op.scalars.as<StepScalars>(),
              op.decision.as<UpdateDecision>());
}

void adam_update(const KernelCtx& ctx, const AdamUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const MapShape shape(to.parameter, to.gradient, op.m, op.v, to.compute_copy);
  with_master_type(to.parameter.dtype, shape.width, [&]<class T, int V>() {
    launch_update(ctx, AdamPacks<T, V>{op, to.decision.as<UpdateDecision>(), to.parameter.as<T>(),
                                       to.gradient.as<T>(), op.m.as<T>(), op.v.as<T>(),
                                       ComputeCopy(to.compute_copy)});
  });
}

void sgd_update(const KernelCtx& ctx, const SgdUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const MapShape shape(to.parameter, to.gradient, op.momentum_buffer, to.compute_copy);
  with_master_type(to.parameter.dtype, shape.width, [&]<class T, int V>() {
    launch_update(ctx, SgdPacks<T, V>{op, to.decision.as<UpdateDecision>(), to.parameter.as<T>(),
                                      to.gradient.as<T>(), op.momentum_buffer.as<T>(),
                                      ComputeCopy(to.compute_copy)});
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, squared_norm>());
  rows.push_back(row_of<ClipByValue, clip_by_value>());
  rows.push_back(row_of<DecideUpdate, decide_update>());
  rows.push_back(row_of<AdamUpdate, adam_update>());
  rows.push_back(row_of<SgdUpdate, sgd_update>());
}

}  // namespace llmtrain::kernels::cuda
