// Routers: a warp per row, which keeps what it knows of each expert in shared memory.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/router.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kMaxWarps = 8;
constexpr std::size_t kSharedBytes = 48 << 10;  // unless one row takes more

template <class T>
constexpr T kNone = -static_cast<T>(INFINITY);

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % 32); }

/// Where the warp's row is, and its part of shared memory: `values` numbers.
template <class T>
struct RowPlace {
  std::int64_t row;
  T* memory;
  __device__ explicit RowPlace(std::size_t values) {
    const unsigned warp = threadIdx.x / 32;
    row = std::int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
    memory = dynamic_shared<T>() + warp * values;
  }
};

/// f(e) for the experts of a lane, in ascending order.
template <class F>
__device__ __forceinline__ void for_experts(int experts, const F& f) {
  for (int e = lane_of_warp(); e < experts; e += 32) f(e);
}

template <class T>
struct RowScores {
  T log_sum;    // log sum exp z
  T score_sum;  // of all experts
};

/// scores[e] of the logits z, for all lanes to read.
template <class T>
__device__ RowScores<T> score_row(const T* z, RouterScores kind, int experts, T* scores) {
  T largest = kNone<T>, sum = 0;
  for_experts(experts, [&](int e) { largest = std::fmax(largest, z[e]); });
  for (int step = 16; step > 0; step /= 2) {
    largest = std::fmax(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  for_experts(experts, [&](int e) { sum += scores[e] = std::exp(z[e] - largest); });
  sum = sum_of_lanes(sum);
  RowScores<T> row{largest + std::log(sum), 1};
  if (kind == RouterScores::softmax) {
    for_experts(experts, [&](int e) { scores[e] /= sum; });
  } else {
    T all = 0;
    for_experts(experts, [&](int e) { all += scores[e] = 1 / (1 + std::exp(-z[e])); });
    row.score_sum = sum_of_lanes(all);
  }
  __syncwarp();
  return row;
}

/// The sum of the chosen scores that normalised weights are shares of; chosen by all lanes alike.
template <class T>
__device__ T chosen_sum(const RouterRule& rule, const T* scores, const std::int32_t* chosen) {
  T sum = rule.scores == RouterScores::sigmoid ? T(1e-20) : T{0};
  for (int k = 0; k < rule.top_k; ++k) sum += scores[chosen[k]];
  return sum;
}

/// Makes the keys of groups that are not kept NaN, which nobody chooses. `sums` has room for a
/// number per group.
template <class T>
__device__ void keep_groups(const RouterRule& rule, int experts, T* keys, T* sums) {
  const auto groups = static_cast<int>(rule.groups), of_group = experts / groups;
  for (int g = lane_of_warp(); g < groups; g += 32) {
    T first = kNone<T>, second = kNone<T>;
    for (int e = g * of_group; e < (g + 1) * of_group; ++e) {
      second = std::fmax(second, std::fmin(first, keys[e]));
      first = std::fmax(first, keys[e]);
    }
    sums[g] = of_group > 1 ? first + second : first;
  }
  __syncwarp();
  for (int g = lane_of_warp(); g < groups; g += 32) {
    int before = 0;
    for (int h = 0; h < groups; ++h) before += sums[h] > sums[g] || (sums[h] == sums[g] && h < g);
    if (before < rule.kept_groups) continue;
    for (int e = g * of_group; e < (g + 1) * of_group; ++e) keys[e] = static_cast<T>(NAN);
  }
  __syncwarp();
}

/// The expert with the largest key, the first of equal ones, for all lanes; its key becomes NaN.
template <class T>
__device__ int take_largest(int experts, T* keys) {
  T best = kNone<T>;
  int at = experts;  // none so far
  for_experts(experts, [&](int e) {
    const T key = keys[e];
    if (key == key && (at == experts || key > best)) {
      best = key;
      at = e;
    }
  });
  for (int step = 16; step > 0; step /= 2) {
    const T key = __shfl_xor_sync(0xffffffffu, best, step);
    const int e = __shfl_xor_sync(0xffffffffu, at, step);
    if (e < experts && (at == experts || key > best || (key == best && e < at))) {
      best = key;
      at = e;
    }
  }
  if (at % 32 == lane_of_warp()) keys[at] = static_cast<T>(NAN);
  return at;
}

template <class T>
struct RouteOperands {
  Rows<const T> logits;
  const T* bias;  // or null
  std::int32_t* expert;
  T* weight;
  T* score;  // or null
  std::int64_t rows;
  int experts;
  RouterRule rule;
  /// Of the scores, the keys, and the sums of groups where some are left out.
  std::size_t values() const {
    return static_cast<std::size_t>(2 * experts +
                                    (rule.kept_groups < rule.groups ? rule.groups : 0));
  }
};

template <class T>
__global__ void route_kernel(RouteOperands<T> op, std::size_t values) {
  const RowPlace<T> place(values);
  if (place.row >= op.rows) return;
  T *const scores = place.memory, *const keys = scores + op.experts;
  const RowScores<T> row = score_row(op.logits.row(place.row), op.rule.scores, op.experts, scores);
  for_experts(op.experts, [&](int e) {
    const T key = scores[e] + (op.bias != nullptr ? op.bias[e] : T{0});
    keys[e] = key == key ? key : kNone<T>;  // NaN goes last
  });
  __syncwarp();
  if (op.rule.kept_groups < op.rule.groups) {
    keep_groups(op.rule, op.experts, keys, keys + op.experts);
  }
  const std::int64_t top_k = op.rule.top_k;
  std::int32_t* const expert = op.expert + place.row * top_k;
  for (int k = 0; k < top_k; ++k) {
    const int e = take_largest(op.experts, keys);
    if (lane_of_warp() == 0) expert[k] = e;
  }
  __syncwarp();
  const T whole = op.rule.normalize ? chosen_sum(op.rule, scores, expert) : T{1};
  // NaN in any logit is one in all weights: a sigmoid of another expert would hide it.
  const bool is_number = row.log_sum == row.log_sum;
  const T factor = is_number ? static_cast<T>(op.rule.scale) / whole : row.log_sum;
  for (std::int64_t k = lane_of_warp(); k < top_k; k += 32) {
    const T score = scores[expert[k]];
    op.weight[place.row * top_k + k] = factor * score;
    if (op.score != nullptr) op.score[place.row * top_k + k] = is_number ? score : row.log_sum;
  }
}

/// Warps of a block, of `values` numbers each, and their memory.
template <class T>
Grid rows_grid(std::int64_t rows, std::size_t values) {
  const std::size_t of_row = values * sizeof(T);
  const auto warps =
      static_cast<int>(std::clamp(kSharedBytes / of_row, std::size_t{1}, std::size_t{kMaxWarps}));
  return {static_cast<unsigned>(ceil_div(rows, warps)), static_cast<unsigned>(32 * warps),
          static_cast<std::size_t>(warps) * of_row};
}

template <class T, class Op>
void launch_rows(const KernelCtx& ctx, void (*kernel)(Op, std::size_t), const Op& operands,
                 std::size_t values) {
  const Grid grid = rows_grid<T>(operands.rows, values);
  allow_shared(kernel, grid.shared_bytes);
  launch_grid(ctx, grid, kernel, operands, values);
}

template <class F>
void with_logits(DType dtype, const F& f) {
  dtype == DType::f64 ? f.template operator()<double>() : f.template operator()<float>();
}

void route_tokens(const KernelCtx& ctx, const RouteTokens& op, const View&) {
  with_logits(op.logits.dtype, [&]<class T>() {
    const RouteOperands<T> operands{.logits = Rows<const T>(op.logits),
                                    .bias = op.bias.as<const T>(),
                                    .expert = op.expert.as<std::int32_t>(),
                                    .weight = op.weight.as<T>(),
                                    .score = op.score.as<T>(),
                                    .rows = op.logits.rows(),
                                    .experts = static_cast<int>(op.logits.cols()),
                                    .rule = op.rule};
    launch_rows<T>(ctx, route_kernel<T>, operands, operands.values());
  });
}

template <class T, class D>
struct BackwardOperands {
  Rows<const T> logits;
  const std::int32_t* expert;
  const T* dweight;  // or null
  const T* choices;  // or null
  Rows<D> dlogits;
  T* values;  // or null
  std::int64_t rows;
  std::int64_t rows_of_sequence;
  int experts;
  RouterRule rule;
  RouterLosses losses;
  const StepScalars* scalars;      // null: that of `losses` counts
  const UpdateDecision* decision;  // null: no scale of its own

  __device__ T grad_scale_now() const {
    const double scale = scalars == nullptr ? losses.grad_scale : scalars->grad_scale;
    return static_cast<T>(decision == nullptr ? scale : scale * decision->loss_scale);
  }
  /// d balance / d p_e of a row.
  __device__ T balance_slope(std::int64_t row, int e) const {
    return static_cast<T>(experts) / static_cast<T>(losses.seq_len) *
           choices[row / rows_of_sequence * experts + e];
  }
};

/// Adds to slopes, which are the gradients of the scores, those of the weights.
template <class T, class D>
__device__ void add_weight_slopes(const BackwardOperands<T, D>& op, std::int64_t row,
                                  const T* scores, T* slopes) {
  const std::int64_t top_k = op.rule.top_k;
  const std::int32_t* const expert = op.expert + row * top_k;
  const T* const dweight = op.dweight + row * top_k;
  T whole = 1, mean = 0;
  if (op.rule.normalize) {
    whole = chosen_sum(op.rule, scores, expert);
    for (std::int64_t k = 0; k < top_k; ++k) mean += dweight[k] * scores[expert[k]] / whole;
  }
  // Experts of a row differ.
  for (std::int64_t k = lane_of_warp(); k < top_k; k += 32) {
    slopes[expert[k]] += static_cast<T>(op.rule.scale) * (dweight[k] - mean) / whole;
  }
  __syncwarp();
}

/// Adds those of the balance loss and returns it. For softmax the mean is subtracted with the
/// others' later; it vanishes there.
template <class T, class D>
__device__ T add_balance_slopes(const BackwardOperands<T, D>& op, std::int64_t row, T grad_scale,
                                T score_sum, const T* scores, T* slopes) {
  T balance = 0;
  for_experts(op.experts,
              [&](int e) { balance += op.balance_slope(row, e) * scores[e] / score_sum; });
  balance = sum_of_lanes(balance);
  const T factor = static_cast<T>(op.losses.balance) * grad_scale / score_sum;
  const T mean = op.rule.scores == RouterScores::sigmoid ? balance : T{0};
  for_experts(op.experts, [&](int e) { slopes[e] += factor * (op.balance_slope(row, e) - mean); });
  return balance;
}

template <class T, class D>
__global__ void route_backward_kernel(BackwardOperands<T, D> op, std::size_t values) {
  const RowPlace<T> place(values);
  const std::int64_t row = place.row;
  if (row >= op.rows) return;
  T *const scores = place.memory, *const slopes = scores + op.experts;
  const T* const z = op.logits.row(row);
  const T grad_scale = op.grad_scale_now();
  for_experts(op.experts, [&](int e) { slopes[e] = 0; });
  const RowScores<T> of_row = score_row(z, op.rule.scores, op.experts, scores);
  if (op.dweight != nullptr) add_weight_slopes(op, row, scores, slopes);
  T balance = 0;
  if (op.choices != nullptr) {
    balance = add_balance_slopes(op, row, grad_scale, of_row.score_sum, scores, slopes);
  }
  if (op.values != nullptr && lane_of_warp() == 0) {
    op.values[row] = balance;
    op.values[op.rows + row] = of_row.log_sum * of_row.log_sum;
  }
  const bool softmax = op.rule.scores == RouterScores::softmax;
  T mean = 0;
  if (softmax) for_experts(op.experts, [&](int e) { mean += slopes[e] * scores[e]; });
  mean = sum_of_lanes(mean);
  const T z_factor = 2 * static_cast<T>(op.losses.z) * grad_scale * of_row.log_sum;
  for_experts(op.experts, [&](int e) {
    const T s = scores[e];
    const T slope = softmax ? s * (slopes[e] - mean) : s * (1 - s) * slopes[e];
    op.dlogits.row(row)[e] =
        narrow<D>(static_cast<Wide<D>>(slope + z_factor * std::exp(z[e] - of_row.log_sum)));
  });
}

void route_tokens_backward(const KernelCtx& ctx, const RouteTokensBackward& op, const View&) {
  with_logits(op.logits.dtype, [&]<class T>() {
    with_type(op.dlogits.dtype, [&]<class D>() {
      const std::int64_t rows = op.logits.rows();
      const BackwardOperands<T, D> operands{
          .logits = Rows<const T>(op.logits),
          .expert = op.expert.as<const std::int32_t>(),
          .dweight = op.dweight.as<const T>(),
          .choices = op.choices.as<const T>(),
          .dlogits = Rows<D>(op.dlogits),
          .values = op.values.as<T>(),
          .rows = rows,
          .rows_of_sequence = op.choices.defined() ? rows / op.choices.rows() : 1,
          .experts = static_cast<int>(op.logits.cols()),
          .rule = op.rule,
          .losses = op.losses,
          .scalars = op.scalars.as<const StepScalars>(),
          .decision = op.decision.as<const UpdateDecision>()};
      launch_rows<T>(ctx, route_backward_kernel<T, D>, operands,
                     static_cast<std::size_t>(2 * operands.experts));
    });
  });
}

}  // namespace

void add_router_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RouteTokens, route_tokens>());
  rows.push_back(row_of<RouteTokensBackward, route_tokens_backward>());
}

}  // namespace llmtrain::kernels::cuda
