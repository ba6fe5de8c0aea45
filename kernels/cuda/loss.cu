#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/loss.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kLossThreads = 512;
/// Packs that a thread has under way at once.
constexpr int kLossPacks = 4;
/// What a block keeps of its row for the second pass: two blocks fit on an H100, one on any GPU.
constexpr std::size_t kHeldBytes = 96 << 10;

template <class Z, class G>
struct LossOperands {
  Rows<const Z> logits;
  const std::int32_t* target;
  Z* loss;
  Rows<G> dlogits;  // null data: none
  int num_classes, cols;
  int held;  // first columns that stay in shared memory
  /// Gradients are written over wider logits of columns further left that shared memory does not
  /// hold.
  bool overlaid;
  double grad_scale;
  const StepScalars* scalars;      // null: `grad_scale` counts
  const UpdateDecision* decision;  // null: no scale of its own
  Z cap;

  __device__ Z grad_scale_now() const {
    const double scale = scalars == nullptr ? grad_scale : scalars->grad_scale;
    return static_cast<Z>(decision == nullptr ? scale : scale * decision->loss_scale);
  }
};

/// Sum of exponentials relative to the largest exponent. Logits of -inf leave it as it is.
template <class Z>
struct LogSum {
  Z max = -static_cast<Z>(INFINITY), sum = 0;

  __device__ static Z relative(Z z, Z max) {
    return max == -static_cast<Z>(INFINITY) ? Z{0} : std::exp(z - max);
  }
  template <int V>
  __device__ void add(const Z (&z)[V]) {
    Z high = max;
    for (int k = 0; k < V; ++k) high = std::fmax(high, z[k]);
    if (high > max) sum *= relative(max, high);
    max = high;
    // A NaN is no maximum, but it makes its own exponential, and so the sum, NaN.
    const Z shift = high == -static_cast<Z>(INFINITY) ? Z{0} : high;
    for (int k = 0; k < V; ++k) sum += std::exp(z[k] - shift);
  }
  /// Over a warp; every lane gets the whole.
  __device__ void join() {
    Z high = max;
    for (int step = 16; step > 0; step /= 2) {
      high = std::fmax(high, __shfl_xor_sync(0xffffffffu, high, step));
    }
    // A sum of zero (no logits but -inf) stays zero; a NaN stays one.
    sum = sum_of_lanes(sum * relative(max, high));
    max = high;
  }
};

/// The log-sum-exp of the block's row, in every thread.
template <class Z>
__device__ Z log_sum_exp(LogSum<Z> all) {
  __shared__ Z maxima[kLossThreads / 32], sums[kLossThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  all.join();
  if (lane == 0) {
    maxima[warp] = all.max;
    sums[warp] = all.sum;
  }
  __syncthreads();
  all = LogSum<Z>{};
  if (lane < static_cast<int>(blockDim.x) / 32) {
    all.max = maxima[lane];
    all.sum = sums[lane];
  }
  all.join();
  return all.max + std::log(all.sum);
}

/// A row: its log-sum-exp in one pass over memory, its gradient in a second one, for which what
/// shared memory holds is not read again. A target that is no class gives NaN.
template <class Z, class G, int V>
__global__ void __launch_bounds__(kLossThreads, 2) cross_entropy_rows(LossOperands<Z, G> op) {
  Z* const held = dynamic_shared<Z>();
  const Z* const logits = op.logits.row(blockIdx.x);
  const int first = static_cast<int>(threadIdx.x) * V, stride = static_cast<int>(blockDim.x) * V;
  const int round = kLossPacks * stride;  // columns that the block has under way at once
  const std::int32_t target = op.target[blockIdx.x];
  const bool learns = op.dlogits.data != nullptr;
  G* const gradients = learns ? op.dlogits.row(blockIdx.x) : nullptr;
  if (target == -1) {
    if (threadIdx.x == 0) op.loss[blockIdx.x] = 0;
    if (!learns) return;
    Pack<G, V> none;
    for (int k = 0; k < V; ++k) none.x[k] = G{};
    for (int j = first; j < op.cols; j += stride) store_pack(gradients + j, none);
    return;
  }

  const auto capped = [&](Z z) { return op.cap > 0 ? op.cap * std::tanh(z / op.cap) : z; };
  const bool is_class = target >= 0 && target < op.num_classes;
  // Before the barrier: afterwards gradients may take the place of logits.
  const Z at_target = threadIdx.x == 0 && is_class ? capped(logits[target]) : Z{0};
  LogSum<Z> seen;
  for (int begin = first; begin < op.num_classes; begin += round) {
    Pack<Z, V> packs[kLossPacks];
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      packs[u] = load_pack<V>(logits + std::min(begin + u * stride, op.cols - V));
    }
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const int j = begin + u * stride;
      if (j >= op.num_classes) break;
      Z z[V];
      for (int k = 0; k < V; ++k) packs[u].x[k] = z[k] = capped(packs[u].x[k]);
      if (j < op.held) store_pack(held + j, packs[u]);
      for (int k = 0; k < V; ++k) {
        if (j + k >= op.num_classes) z[k] = -static_cast<Z>(INFINITY);
      }
      seen.add(z);
    }
  }
  const Z log_sum = log_sum_exp(seen);
  const Z lse = is_class ? log_sum : static_cast<Z>(NAN);
  if (threadIdx.x == 0) op.loss[blockIdx.x] = lse - at_target;
  if (!learns) return;

  const Z grad_scale = op.grad_scale_now();
  for (int begin = 0; begin < op.cols; begin += round) {
    Pack<Z, V> packs[kLossPacks];
    const bool all_held = begin + round <= op.held;
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const int j = begin + first + u * stride;
      if (all_held) {
        packs[u] = load_pack<V>(held + j);
      } else {
        packs[u] = load_pack<V>(j < op.held ? held + j : logits + std::min(j, op.cols - V));
      }
    }
    // Everybody has read this round's logits and all further left; gradients reach no further.
    if (op.overlaid) __syncthreads();
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const int j = begin + first + u * stride;
      if (j >= op.cols) break;
      Pack<G, V> result;
      for (int k = 0; k < V; ++k) {
        const Z z = j < op.held ? packs[u].x[k] : capped(packs[u].x[k]);
        const Z onehot = j + k == target ? 1 : 0;
        Z gradient = grad_scale * (std::exp(z - lse) - onehot);
        if (op.cap > 0) gradient *= 1 - (z / op.cap) * (z / op.cap);
        result.x[k] = narrow<G>(j + k < op.num_classes ? gradient : Z{0});
      }
      store_pack(gradients + j, result);
    }
  }
}

template <class Z, class G>
void cross_entropy_as(const KernelCtx& ctx, const CrossEntropy& op) {
  const bool learns = op.dlogits.defined();
  const auto cols = static_cast<int>(op.logits.cols());
  constexpr int kFull = std::is_same_v<Z, double> ? 1 : 4;
  const bool packed = cols % kFull == 0 && rows_aligned(op.logits, kFull * sizeof(Z)) &&
                      (!learns || rows_aligned(op.dlogits, kFull * sizeof(G)));
  LossOperands<Z, G> operands{.logits = Rows<const Z>(op.logits),
                              .target = op.target.as<std::int32_t>(),
                              .loss = op.loss.as<Z>(),
                              .dlogits = learns ? Rows<G>(op.dlogits) : Rows<G>{},
                              .num_classes = static_cast<int>(op.num_classes),
                              .cols = cols,
                              .held = 0,
                              .overlaid = false,
                              .grad_scale = op.grad_scale,
                              .scalars = op.scalars.as<StepScalars>(),
                              .decision = op.decision.as<UpdateDecision>(),
                              .cap = static_cast<Z>(op.softcap)};
  const auto run = [&]<int V>() {
    // Columns that the first pass visits, in whole packs.
    const std::int64_t visited = ceil_div(op.num_classes, V) * V;
    if (learns) {
      operands.held = static_cast<int>(std::min<std::int64_t>(visited, kHeldBytes / sizeof(Z)));
      operands.overlaid = sizeof(G) < sizeof(Z) && op.dlogits.data == op.logits.data &&
                          static_cast<std::size_t>(cols) * sizeof(G) >
                              static_cast<std::size_t>(operands.held) * sizeof(Z);
    }
    const std::int64_t busy = ceil_div(cols, std::int64_t{V} * kLossPacks);
    const auto threads =
        static_cast<unsigned>(std::min<std::int64_t>(kLossThreads, ceil_div(busy, 32) * 32));
    const std::size_t shared = static_cast<std::size_t>(operands.held) * sizeof(Z);
    if (shared > (48 << 10)) allow_shared(cross_entropy_rows<Z, G, V>, shared);
    launch_grid(ctx, {static_cast<unsigned>(op.logits.rows()), threads, shared},
                cross_entropy_rows<Z, G, V>, operands);
  };
  packed ? run.template operator()<kFull>() : run.template operator()<1>();
}

void cross_entropy(const KernelCtx& ctx, const CrossEntropy& op, const View&) {
  if (op.logits.dtype == DType::f64) {
    cross_entropy_as<double, double>(ctx, op);
  } else if (!op.dlogits.defined() || op.dlogits.dtype == DType::f32) {
    cross_entropy_as<float, float>(ctx, op);
  } else if (op.dlogits.dtype == DType::bf16) {
    cross_entropy_as<float, bf16>(ctx, op);
  } else {
    cross_entropy_as<float, f16>(ctx, op);
  }
}

constexpr int kSumThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_blocks(const T* x, std::int64_t n, double* blocks) {
  __shared__ double of_warps[kSumThreads / 32];
  const std::int64_t begin = blockIdx.x * Sum::kBlock;
  double sum = 0;
#pragma unroll
  for (int e = 0; e < Sum::kBlock; e += kSumThreads) {
    const std::int64_t i = begin + e + threadIdx.x;
    if (i < n) sum += static_cast<double>(x[i]);
  }
  sum = sum_of_block<kSumThreads>(sum, of_warps);
  if (threadIdx.x == 0) blocks[blockIdx.x] = sum;
}

/// out[0] += the blocks in ascending order: one warp fetches, every lane adds the same.
__global__ void __launch_bounds__(32)
    join_blocks(const double* blocks, std::int64_t count, double* out) {
  const std::int64_t lane = threadIdx.x;
  double total = 0;
  double ahead = lane < count ? blocks[lane] : 0;
  for (std::int64_t begin = 0; begin < count; begin += 32) {
    const double now = ahead;
    const std::int64_t next = begin + 32 + lane;
    ahead = next < count ? blocks[next] : 0;
    const int left = static_cast<int>(std::min(count - begin, std::int64_t{32}));
    for (int i = 0; i < left; ++i) total += __shfl_sync(0xffffffffu, now, i);
  }
  if (lane == 0) out[0] += total;
}

void sum(const KernelCtx& ctx, const Sum& op, const View& workspace) {
  const std::int64_t n = op.x.numel(), count = ceil_div(n, Sum::kBlock);
  if (count == 0) return;
  auto* const blocks = workspace.as<double>();
  const Grid grid{static_cast<unsigned>(count), kSumThreads};
  if (op.x.dtype == DType::f64) {
    launch_grid(ctx, grid, sum_blocks<double>, op.x.as<double>(), n, blocks);
  } else {
    launch_grid(ctx, grid, sum_blocks<float>, op.x.as<float>(), n, blocks);
  }
  launch_grid(ctx, {1u, 32u}, join_blocks, blocks, count, op.out.as<double>());
}

}  // namespace

void add_loss_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<CrossEntropy, cross_entropy>());
  rows.push_back(row_of<Sum, sum>());
}

}  // namespace llmtrain::kernels::cuda
