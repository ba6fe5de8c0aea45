// What follows from the choices of routers: how many each expert has, which of them it has room
// for, and how biases move.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/router.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Whole numbers.
__device__ __forceinline__ int sum_over_block(int x) {
  __shared__ int of_warps[kWarps];
  const int sum = sum_of_block<kThreads>(x, of_warps);
  __syncthreads();  // before of_warps is written again
  return sum;
}

/// The choices of expert `expert` in sequence `sequence`, a bin, of which each block has one. The
/// sequence has a run of choices in each part.
struct Bin {
  std::int64_t number, first, between, of_run;
  int expert, parts;

  __device__ Bin(std::int64_t experts, std::int64_t sequences, int parts, std::int64_t of_run)
      : number(blockIdx.x),
        first(number / experts * of_run),
        between(sequences * of_run),
        of_run(of_run),
        expert(static_cast<int>(number % experts)),
        parts(parts) {}

  /// f(c) for the choices of one thread.
  template <class F>
  __device__ void for_choices(const std::int32_t* choices, const F& f) const {
    for (int p = 0; p < parts; ++p) {
      const std::int64_t begin = first + p * between;
      for (std::int64_t c = begin + threadIdx.x; c < begin + of_run; c += kThreads) {
        if (choices[c] == expert) f(c);
      }
    }
  }
  __device__ int count(const std::int32_t* choices) const {
    int count = 0;
    for_choices(choices, [&](std::int64_t) { ++count; });
    return count;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* choices, std::int64_t experts, std::int64_t of_sequence,
                 T* counts) {
  const Bin bin(experts, 0, 1, of_sequence);
  const int count = sum_over_block(bin.count(choices));
  if (threadIdx.x == 0) counts[bin.number] = static_cast<T>(count);
}

template <class F>
void with_wide(DType dtype, const F& f) {
  dtype == DType::f64 ? f.template operator()<double>() : f.template operator()<float>();
}

void count_choices(const KernelCtx& ctx, const CountChoices& op, const View&) {
  with_wide(op.choices.dtype, [&]<class T>() {
    launch_grid(ctx, {static_cast<unsigned>(op.choices.numel()), kThreads}, count_kernel<T>,
                op.expert.as<const std::int32_t>(), op.choices.cols(),
                op.expert.numel() / op.choices.rows(), op.choices.as<T>());
  });
}

/// A score as whole numbers are ordered, so far as it counts: what of fp32 is left by 8 bits less,
/// rounded, and of fp64 by fp32. NaN is infinite.
__device__ __forceinline__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);  // of two zeros, one
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ std::uint32_t counted_score(float score) {
  if (score != score) return ordered(INFINITY);
  return ordered(__uint_as_float((__float_as_uint(score) + 0x80u) & ~0xffu));
}
__device__ __forceinline__ std::uint32_t counted_score(double score) {
  return ordered(score == score ? static_cast<float>(score) : INFINITY);
}

template <class T>
struct LimitOperands {
  const std::int32_t* expert;
  const T* score;
  const std::int32_t* position;  // or null: the order of the rows
  std::int32_t* kept;
  std::int64_t experts, sequences, capacity, of_run;
  int top_k, parts;
  std::int32_t *begin, *choices;  // of each bin, and by bin

  __device__ Bin bin() const { return Bin(experts, sequences, parts, of_run); }
  __device__ std::uint32_t key(std::int32_t c) const { return counted_score(score[c]); }
  __device__ std::uint32_t position_of(std::int32_t c) const {
    const std::int32_t row = c / top_k;
    return static_cast<std::uint32_t>(position == nullptr ? row : position[row]);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) count_bins(LimitOperands<T> op) {
  const int count = sum_over_block(op.bin().count(op.expert));
  if (threadIdx.x == 0) op.begin[blockIdx.x] = count;
}

/// Numbers of choices become where each bin's begin. One block.
__global__ void __launch_bounds__(kThreads) place_bins(std::int32_t* begin, std::int64_t bins) {
  __shared__ int of_warps[kWarps];
  int found = 0;
  for (std::int64_t first = 0; first <= bins; first += kThreads) {
    const std::int64_t b = first + threadIdx.x;
    int all;
    const int before = sum_before_thread<kThreads>(b < bins ? begin[b] : 0, of_warps, all);
    if (b <= bins) begin[b] = found + before;
    found += all;
  }
}

/// The largest number that at least `wanted` of the block's values reach; in every thread.
/// count(x) = how many of one thread's are at least x.
template <class Count>
__device__ std::uint32_t reached_by(std::int64_t wanted, const Count& count) {
  std::uint32_t reached = 0;
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (sum_over_block(count(reached | bit)) >= wanted) reached |= bit;
  }
  return reached;
}

__global__ void __launch_bounds__(kThreads) keep_none(std::int32_t* kept, std::int64_t n) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c < n) kept[c] = -1;
}

/// Keeps the choices of the block's bin that there is room for. Where that is not all, they are
/// listed, and the least score that is kept is found bit by bit; and of equal ones the last
/// position in the same way.
template <class T>
__global__ void __launch_bounds__(kThreads) limit_kernel(LimitOperands<T> op) {
  __shared__ int of_warps[kWarps];
  const Bin bin = op.bin();
  const std::int32_t begin = op.begin[blockIdx.x], count = op.begin[blockIdx.x + 1] - begin;
  if (count <= op.capacity) {
    return bin.for_choices(op.expert, [&](std::int64_t c) { op.kept[c] = bin.expert; });
  }
  std::int32_t* const list = op.choices + begin;
  int all;
  int at = sum_before_thread<kThreads>(bin.count(op.expert), of_warps, all);
  bin.for_choices(op.expert, [&](std::int64_t c) { list[at++] = static_cast<std::int32_t>(c); });
  __syncthreads();
  const auto how_many = [&](const auto& holds) {
    int found = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) found += holds(list[i]);
    return found;
  };
  const std::uint32_t least = reached_by(op.capacity, [&](std::uint32_t x) {
    return how_many([&](std::int32_t c) { return op.key(c) >= x; });
  });
  const std::int64_t above =
      sum_over_block(how_many([&](std::int32_t c) { return op.key(c) > least; }));
  // Complements of positions: the largest is that of the first.
  const std::uint32_t last = reached_by(op.capacity - above, [&](std::uint32_t x) {
    return how_many([&](std::int32_t c) { return op.key(c) == least && ~op.position_of(c) >= x; });
  });
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const std::int32_t c = list[i];
    const std::uint32_t key = op.key(c);
    if (key > least || (key == least && ~op.position_of(c) >= last)) op.kept[c] = bin.expert;
  }
}

void limit_choices(const KernelCtx& ctx, const LimitChoices& op, const View& workspace) {
  const std::int64_t n = op.expert.numel(), bins = op.sequences * op.experts;
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(n, kThreads)), kThreads}, keep_none,
              op.kept.as<std::int32_t>(), n);
  with_wide(op.score.dtype, [&]<class T>() {
    const LimitOperands<T> operands{.expert = op.expert.as<const std::int32_t>(),
                                    .score = op.score.as<const T>(),
                                    .position = op.position.as<const std::int32_t>(),
                                    .kept = op.kept.as<std::int32_t>(),
                                    .experts = op.experts,
                                    .sequences = op.sequences,
                                    .capacity = op.capacity,
                                    .of_run = n / (op.sequences * op.parts),
                                    .top_k = static_cast<int>(op.expert.cols()),
                                    .parts = static_cast<int>(op.parts),
                                    .begin = workspace.as<std::int32_t>(),
                                    .choices = workspace.as<std::int32_t>() + bins + 1};
    const Grid of_bins{static_cast<unsigned>(bins), kThreads};
    launch_grid(ctx, of_bins, count_bins<T>, operands);
    launch_grid(ctx, {1u, kThreads}, place_bins, operands.begin, bins);
    launch_grid(ctx, of_bins, limit_kernel<T>, operands);
  });
}

/// One block. Counts are whole numbers, so that their sum is exact in any order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    balance_kernel(const T* choices, T* bias, std::int64_t experts, const UpdateDecision* decision,
                   double speed) {
  __shared__ double of_warps[kWarps];
  if (decision->apply == 0) return;
  double sum = 0;
  for (std::int64_t e = threadIdx.x; e < experts; e += kThreads) {
    sum += static_cast<double>(choices[e]);
  }
  sum = sum_of_block<kThreads>(sum, of_warps);
  for (std::int64_t e = threadIdx.x; e < experts; e += kThreads) {
    // As many times each count as there are experts: whole numbers, which no mean need be.
    const double count = static_cast<double>(choices[e]) * static_cast<double>(experts);
    if (count != sum) bias[e] += static_cast<T>(count < sum ? speed : -speed);
  }
}

void balance_router(const KernelCtx& ctx, const BalanceRouter& op, const View&) {
  with_wide(op.bias.dtype, [&]<class T>() {
    launch_grid(ctx, {1u, kThreads}, balance_kernel<T>, op.choices.as<const T>(), op.bias.as<T>(),
                op.bias.numel(), op.decision.as<const UpdateDecision>(), op.speed);
  });
}

}  // namespace

void add_router_choices_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<LimitChoices, limit_choices>());
  rows.push_back(row_of<CountChoices, count_choices>());
  rows.push_back(row_of<BalanceRouter, balance_router>());
}

}  // namespace llmtrain::kernels::cuda
