#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/loss.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kLossThreads = 512;
/// Packs that a thread has under way at once: 64 or 32 bytes, 16 logits.
template <class L>
constexpr int kLossPacks = sizeof(L) == 2 ? 2 : 4;
/// What a block keeps of its row for the second pass: two blocks fit on an H100, one on any GPU.
constexpr std::size_t kHeldBytes = 96 << 10;

/// L is the type of logits, G that of their gradients.
template <class L, class G>
struct LossOperands {
  using Z = Wide<L>;
  static constexpr bool kFast = sizeof(G) < sizeof(Z);
  /// Shared memory has logits as they are read, or capped where they are no narrower then.
  static constexpr bool kHoldsCapped = std::is_same_v<L, Z>;

  Rows<const L> logits;
  const std::int32_t* target;
  Z* loss;
  Rows<G> dlogits;  // null data: none
  int num_classes, cols;
  int first_id, ids;    // id of the first class; ids of all parts
  const Z* statistics;  // of all parts; null: the logits are those of all classes
  int parts;
  int held;  // first columns that stay in shared memory
  /// Gradients are written over wider logits of columns further left that shared memory does not
  /// hold.
  bool overlaid;
  double grad_scale;
  const StepScalars* scalars;      // null: `grad_scale` counts
  const UpdateDecision* decision;  // null: no scale of its own
  Z cap, z_loss_coef;
  Z* z_loss;  // null: none

  __device__ Z grad_scale_now() const {
    const double scale = scalars == nullptr ? grad_scale : scalars->grad_scale;
    return static_cast<Z>(decision == nullptr ? scale : scale * decision->loss_scale);
  }
  __device__ Z capped_at(const L* row, int column) const { return capped(widen(row[column])); }
  /// Whether any part has the target as a class.
  __device__ bool is_class(std::int32_t id) const { return id >= 0 && id < ids; }
  __device__ Z capped(Z z) const { return cap > 0 ? cap * std::tanh(z / cap) : z; }
};

/// e^x; `fast` beside gradients of 16 bits: x is a few units in the last place off then, and e^x.
template <bool fast, class Z>
__device__ __forceinline__ Z exponential(Z x) {
  constexpr float kLog2e = 1.44269504088896340736f;
  if constexpr (fast && std::is_same_v<Z, float>) return exp2_fast(x * kLog2e);
  return std::exp(x);
}

/// Sum of exponentials relative to the largest exponent. Logits of -inf leave it as it is.
template <class Z>
struct LogSum {
  Z max = -static_cast<Z>(INFINITY), sum = 0;

  __device__ static Z relative(Z z, Z max) {
    return max == -static_cast<Z>(INFINITY) ? Z{0} : std::exp(z - max);
  }
  template <bool fast, int V>
  __device__ __forceinline__ void add(const Z (&z)[V]) {
    Z high = max;
    for (int k = 0; k < V; ++k) high = std::fmax(high, z[k]);
    if (high > max) sum *= relative(max, high);
    max = high;
    // A NaN is no maximum, but it makes its own exponential, and so the sum, NaN.
    const Z shift = high == -static_cast<Z>(INFINITY) ? Z{0} : high;
    Z added = 0;
    for (int k = 0; k < V; ++k) added += exponential<fast>(z[k] - shift);
    sum += added;
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

/// The block's row, in every thread.
template <class Z>
__device__ LogSum<Z> of_block(LogSum<Z> all) {
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
  return all;
}

/// A row of LogitStatistics.
template <class Z>
struct RowStatistics {
  LogSum<Z> all;
  Z at_target = 0;
};

/// Row `row` of all parts together, in the order of the parts.
template <class L, class G, class Z = Wide<L>>
__device__ RowStatistics<Z> joined_statistics(const LossOperands<L, G>& op, std::int64_t row) {
  RowStatistics<Z> joined;
  const Z* const first = op.statistics + 3 * row;
  const std::int64_t stride = std::int64_t{3} * gridDim.x;
  for (int p = 0; p < op.parts; ++p) {
    joined.all.max = std::fmax(joined.all.max, first[p * stride]);
  }
  for (int p = 0; p < op.parts; ++p) {
    const Z* const part = first + p * stride;
    if (part[1] != 0) joined.all.sum += part[1] * joined.all.relative(part[0], joined.all.max);
    joined.at_target += part[2];
  }
  return joined;
}

/// The exponentials of a row in one pass over memory; its first op.held logits stay in `held`. Of
/// the whole block, in every thread.
template <class L, class G, int V, class Z = Wide<L>>
__device__ LogSum<Z> sum_row(const LossOperands<L, G>& op, const L* logits, L* held) {
  using Op = LossOperands<L, G>;
  constexpr int kPacks = kLossPacks<L>;
  const int first = static_cast<int>(threadIdx.x) * V, stride = static_cast<int>(blockDim.x) * V;
  const int round = kPacks * stride;  // columns that the block has under way at once
  LogSum<Z> seen;
  for (int begin = first; begin < op.num_classes; begin += round) {
    Bits<L, V> packs[kPacks];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      packs[u] = load_bits<V>(logits + std::min(begin + u * stride, op.cols - V));
    }
    Z z[kPacks * V];
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int j = begin + u * stride;
      Z of_pack[V];
      widen_bits<L>(packs[u], of_pack);
      if (op.cap > 0) {
        for (int k = 0; k < V; ++k) of_pack[k] = op.capped(of_pack[k]);
      }
      if (j < op.held) {
        if constexpr (Op::kHoldsCapped) packs[u] = narrow_bits<L>(of_pack);
        store_pack(held + j, packs[u]);
      }
      for (int k = 0; k < V; ++k) z[u * V + k] = of_pack[k];
    }
    if (begin + round - stride + V > op.num_classes) {  // some of them are none
#pragma unroll
      for (int i = 0; i < kPacks * V; ++i) {
        if (begin + i / V * stride + i % V >= op.num_classes) z[i] = -static_cast<Z>(INFINITY);
      }
    }
    seen.template add<Op::kFast>(z);
  }
  return of_block(seen);
}

template <class L, class G, int V, class Z = Wide<L>>
__global__ void __launch_bounds__(kLossThreads, 2)
    logit_statistics_rows(LossOperands<L, G> op, Z* statistics) {
  const L* const logits = op.logits.row(blockIdx.x);
  const LogSum<Z> all = sum_row<L, G, V>(op, logits, nullptr);
  if (threadIdx.x != 0) return;
  const std::int32_t target = op.target[blockIdx.x];
  const int column = target - op.first_id;
  const bool here = target >= 0 && column >= 0 && column < op.num_classes;
  Z* const row = statistics + std::int64_t{3} * blockIdx.x;
  row[0] = all.max;
  row[1] = all.sum;
  row[2] = here ? op.capped_at(logits, column) : Z{0};
}

/// What turns logits of a row into their gradient.
template <class L, class G>
struct RowGradient {
  using Z = Wide<L>;
  static constexpr bool kFast = LossOperands<L, G>::kFast;

  __device__ RowGradient(const LossOperands<L, G>& op, Z log_sum, int target_column)
      : lse(log_sum), column(target_column) {
    const Z grad_scale = op.grad_scale_now();
    // Beside 16 bits the scale of the gradient is a factor of the softmax already.
    one = kFast ? grad_scale : Z{1};
    last = kFast ? Z{1} : grad_scale;
    softmax_scale = one * (1 + 2 * op.z_loss_coef * lse);
  }
  /// Of the columns from j on, whose logits are capped; zero for those that are no classes.
  template <int V>
  __device__ __forceinline__ Bits<G, V> of(const LossOperands<L, G>& op, int j,
                                           const Z (&z)[V]) const {
    Z gradient[V];
    for (int k = 0; k < V; ++k) gradient[k] = softmax_scale * exponential<kFast>(z[k] - lse);
    if (column >= j && column < j + V) {
      for (int k = 0; k < V; ++k) gradient[k] -= j + k == column ? one : Z{0};
    }
    if (op.cap > 0) {
      for (int k = 0; k < V; ++k) gradient[k] *= 1 - (z[k] / op.cap) * (z[k] / op.cap);
    }
    if constexpr (!kFast) {
      for (int k = 0; k < V; ++k) gradient[k] *= last;
    }
    if (j + V > op.num_classes) {
      for (int k = 0; k < V; ++k) gradient[k] = j + k < op.num_classes ? gradient[k] : Z{0};
    }
    return narrow_bits<G>(gradient);
  }

  Z lse, one, last, softmax_scale;
  int column;
};

/// A row: its log-sum-exp in one pass over memory, its gradient in a second one, for which what
/// shared memory holds is not read again; where the statistics are given, the second alone. A
/// target that is no class gives NaN.
template <class L, class G, int V>
__global__ void __launch_bounds__(kLossThreads, 2) cross_entropy_rows(LossOperands<L, G> op) {
  using Op = LossOperands<L, G>;
  using Z = Wide<L>;
  constexpr int kPacks = kLossPacks<L>;
  L* const held = dynamic_shared<L>();
  const L* const logits = op.logits.row(blockIdx.x);
  const int first = static_cast<int>(threadIdx.x) * V, stride = static_cast<int>(blockDim.x) * V;
  const int round = kPacks * stride;  // columns that the block has under way at once
  const std::int32_t target = op.target[blockIdx.x];
  const bool learns = op.dlogits.data != nullptr;
  G* const gradients = learns ? op.dlogits.row(blockIdx.x) : nullptr;
  if (target == -1) {
    if (threadIdx.x == 0) {
      op.loss[blockIdx.x] = 0;
      if (op.z_loss != nullptr) op.z_loss[blockIdx.x] = 0;
    }
    if (!learns) return;
    Pack<G, V> none;
    for (int k = 0; k < V; ++k) none.x[k] = G{};
    for (int j = first; j < op.cols; j += stride) store_pack(gradients + j, none);
    return;
  }

  const bool is_class = op.is_class(target);
  RowStatistics<Z> row;
  if (op.statistics != nullptr) {
    row = joined_statistics(op, blockIdx.x);
  } else {
    // Before the barrier: afterwards gradients may take the place of logits.
    row.at_target = threadIdx.x == 0 && is_class ? op.capped_at(logits, target) : Z{0};
    row.all = sum_row<L, G, V>(op, logits, held);
  }
  const Z lse = is_class ? row.all.max + std::log(row.all.sum) : static_cast<Z>(NAN);
  if (threadIdx.x == 0) {
    op.loss[blockIdx.x] = lse - row.at_target;
    if (op.z_loss != nullptr) op.z_loss[blockIdx.x] = op.z_loss_coef * lse * lse;
  }
  if (!learns) return;
  const RowGradient<L, G> gradient(op, lse, target - op.first_id);
  for (int begin = 0; begin < op.cols; begin += round) {
    Bits<L, V> packs[kPacks];
    const bool all_held = begin + round <= op.held;
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int j = begin + first + u * stride;
      if (all_held) {
        packs[u] = load_bits<V>(static_cast<const L*>(held + j));
      } else {
        packs[u] = load_bits<V>(j < op.held ? held + j : logits + std::min(j, op.cols - V));
      }
    }
    // Everybody has read this round's logits and all further left; gradients reach no further.
    if (op.overlaid) __syncthreads();
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int j = begin + first + u * stride;
      if (j >= op.cols) break;
      Z z[V];
      widen_bits<L>(packs[u], z);
      if (op.cap > 0 && !(Op::kHoldsCapped && j < op.held)) {
        for (int k = 0; k < V; ++k) z[k] = op.capped(z[k]);
      }
      store_pack(gradients + j, gradient.of(op, j, z));
    }
  }
}

/// What both kernels read; Op is CrossEntropy or LogitStatistics.
template <class L, class G, class Op>
LossOperands<L, G> loss_operands(const Op& op) {
  LossOperands<L, G> operands{};
  operands.logits = Rows<const L>(op.logits);
  operands.target = op.target.template as<std::int32_t>();
  operands.num_classes = static_cast<int>(op.num_classes);
  operands.cols = static_cast<int>(op.logits.cols());
  operands.first_id = static_cast<int>(op.part.first);
  operands.ids = static_cast<int>(op.part.end(op.num_classes));
  operands.cap = static_cast<Wide<L>>(op.softcap);
  return operands;
}

template <class L>
constexpr int kLossPack = std::is_same_v<L, double> ? 1 : kPack<L>;

/// Threads of a block that visits `cols` columns in packs of V.
template <class L, int V>
unsigned loss_threads(std::int64_t cols) {
  const std::int64_t busy = ceil_div(cols, std::int64_t{V} * kLossPacks<L>);
  return static_cast<unsigned>(std::min<std::int64_t>(kLossThreads, ceil_div(busy, 32) * 32));
}

template <class L, class G>
void cross_entropy_as(const KernelCtx& ctx, const CrossEntropy& op) {
  using Z = Wide<L>;
  const bool learns = op.dlogits.defined();
  const std::int64_t cols = op.logits.cols();
  constexpr int kFull = kLossPack<L>;
  const bool packed = cols % kFull == 0 && rows_aligned(op.logits, kFull * sizeof(L)) &&
                      (!learns || rows_aligned(op.dlogits, kFull * sizeof(G)));
  auto operands = loss_operands<L, G>(op);
  operands.loss = op.loss.as<Z>();
  operands.z_loss = op.z_loss.as<Z>();
  operands.z_loss_coef = static_cast<Z>(op.z_loss_coef);
  if (learns) operands.dlogits = Rows<G>(op.dlogits);
  operands.statistics = op.statistics.as<Z>();
  operands.parts = static_cast<int>(op.parts());
  operands.grad_scale = op.grad_scale;
  operands.scalars = op.scalars.as<StepScalars>();
  operands.decision = op.decision.as<UpdateDecision>();
  const auto run = [&]<int V>() {
    if (learns) {
      // Columns that the first pass visits, in whole packs.
      const std::int64_t visited = op.statistics.defined() ? 0 : ceil_div(op.num_classes, V) * V;
      operands.held = static_cast<int>(std::min<std::int64_t>(visited, kHeldBytes / sizeof(L)));
      operands.overlaid = sizeof(G) < sizeof(L) && op.dlogits.data == op.logits.data &&
                          static_cast<std::size_t>(cols) * sizeof(G) >
                              static_cast<std::size_t>(operands.held) * sizeof(L);
    }
    const std::size_t shared = static_cast<std::size_t>(operands.held) * sizeof(L);
    if (shared > kUnaskedShared) allow_shared(cross_entropy_rows<L, G, V>, shared);
    launch_grid(ctx, {static_cast<unsigned>(op.logits.rows()), loss_threads<L, V>(cols), shared},
                cross_entropy_rows<L, G, V>, operands);
  };
  packed ? run.template operator()<kFull>() : run.template operator()<1>();
}

void cross_entropy(const KernelCtx& ctx, const CrossEntropy& op, const View&) {
  const DType gradient = op.dlogits.defined() ? op.dlogits.dtype : DType::f32;
  with_type(op.logits.dtype, [&]<class L>() {
    if constexpr (std::is_same_v<L, float>) {
      if (gradient == DType::bf16) return cross_entropy_as<L, bf16>(ctx, op);
      if (gradient == DType::f16) return cross_entropy_as<L, f16>(ctx, op);
    }
    cross_entropy_as<L, L>(ctx, op);
  });
}

template <class L>
void logit_statistics_as(const KernelCtx& ctx, const LogitStatistics& op) {
  constexpr int kFull = kLossPack<L>;
  const std::int64_t cols = op.logits.cols();
  const auto run = [&]<int V>() {
    launch_grid(ctx, {static_cast<unsigned>(op.logits.rows()), loss_threads<L, V>(cols)},
                logit_statistics_rows<L, L, V>, loss_operands<L, L>(op),
                op.statistics.as<Wide<L>>());
  };
  const bool packed = cols % kFull == 0 && rows_aligned(op.logits, kFull * sizeof(L));
  packed ? run.template operator()<kFull>() : run.template operator()<1>();
}

void logit_statistics(const KernelCtx& ctx, const LogitStatistics& op, const View&) {
  with_type(op.logits.dtype, [&]<class L>() { logit_statistics_as<L>(ctx, op); });
}

}  // namespace

void add_loss_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<LogitStatistics, logit_statistics>());
  rows.push_back(row_of<CrossEntropy, cross_entropy>());
}

}  // namespace llmtrain::kernels::cuda
