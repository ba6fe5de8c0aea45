// Gradient norms and the decision that follows from them, in the reference's order of summation, so
// that they have its bits.
#include <algorithm>

#include "kernels/cuda/list.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/workspace.hpp"
#include "kernels/cuda/squares.cuh"

namespace llmtrain::kernels::cuda {

namespace {

/// sums[c] = sum of the squares of chunk c.
template <class T>
__global__ void __launch_bounds__(kSquareThreads<T>)
    square_chunks(List<SquaredNorm::Row> list, double* sums) {
  const SquaredNorm::Row& row = list.row_at(blockIdx.x);
  const double sum =
      squares_of_chunk(PlainNumbers<T>{static_cast<const T*>(row.gradient)},
                       (blockIdx.x - row.place.first_chunk) * kListChunk, row.place.numel);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// out[i] = sum over the chunks of gradient i, which is block i's.
__global__ void __launch_bounds__(kJoinThreads)
    join_chunks(List<SquaredNorm::Row> list, double* sums, double* out) {
  const ListPlace place = list.row(blockIdx.x).place;
  double* const own = sums + place.first_chunk;
  const double sum = join_all(own, list_chunks(place.numel), own);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

/// One thread block: there are as many squares as parameters have names. `sums` has room for one
/// of every kJoin. Only the numbers of `op` are read.
__global__ void __launch_bounds__(kJoinThreads)
    decide(DecideUpdate op, const double* squares, std::int64_t count, double* sums,
           const double* loss_sum, std::int64_t num_losses, const StepScalars* scalars,
           UpdateDecision* decision) {
  const double sum = join_all(squares, count, sums);
  if (threadIdx.x != 0) return;
  op.decide(sum, num_losses > 0 ? loss_sum[0] : 0, num_losses > 1 ? loss_sum[1] : 0,
            scalars == nullptr ? op.lr : scalars->lr,
            scalars == nullptr ? op.loss_limit : scalars->loss_limit, *decision);
}

/// A thread per gradient: it has few runs.
__global__ void __launch_bounds__(kJoinThreads)
    join_gradients(const double* runs, const std::int32_t* levels, const std::int32_t* first,
                   std::int64_t count, double* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (i >= count) return;
  out[i] = JoinSquaredNorms::join(runs + first[i], levels + first[i], first[i + 1] - first[i]);
}

void squared_norm(const KernelCtx& ctx, const SquaredNorm& op, const View& workspace) {
  const List<SquaredNorm::Row> list(op, op.gradients);
  auto* const sums = workspace.as<double>();
  if (op.dtype() == DType::f64) {
    launch_grid(ctx, list.grid(kSquareThreads<double>), square_chunks<double>, list, sums);
  } else {
    launch_grid(ctx, list.grid(kSquareThreads<float>), square_chunks<float>, list, sums);
  }
  launch_grid(ctx, {static_cast<unsigned>(list.count), kJoinThreads}, join_chunks, list, sums,
              op.out.as<double>());
}

void join_squared_norms(const KernelCtx& ctx, const JoinSquaredNorms& op, const View&) {
  const std::int64_t count = op.out.numel();
  if (count == 0) return;
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(count, kJoinThreads)), kJoinThreads},
              join_gradients, op.runs.as<double>(), op.levels.as<std::int32_t>(),
              op.first.as<std::int32_t>(), count, op.out.as<double>());
}

void decide_update(const KernelCtx& ctx, const DecideUpdate& op, const View& workspace) {
  launch_grid(ctx, {1, kJoinThreads}, decide, op, op.squares.as<double>(), op.squares.numel(),
              workspace.as<double>(), op.loss_sum.as<double>(), op.num_losses(),
              op.scalars.as<StepScalars>(), op.decision.as<UpdateDecision>());
}

}  // namespace

void add_gradient_norm_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, squared_norm>());
  rows.push_back(row_of<JoinSquaredNorms, join_squared_norms>());
  rows.push_back(row_of<DecideUpdate, decide_update>());
}

}  // namespace llmtrain::kernels::cuda
