// Second moments that the elements of a block share, with the reference's bits.
#include "kernels/block_moments.hpp"
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/run_sums.cuh"
#include "kernels/cuda/update.cuh"

namespace llmtrain::kernels::cuda {

namespace {

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    advance_moments(BlockMoments op, const double* squares, T* moment, std::int64_t count,
                    const UpdateDecision* decision) {
  if (decision->apply == 0) return;
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= count) return;
  moment[i] = op.advanced(moment[i], squares[i], op.decay(*decision), *decision);
}

template <class T, int V>
struct BlockAdamPacks {
  static constexpr int kWidth = V;
  using Scalars = BlockAdamScalars<T>;
  BlockAdamUpdate op;  // its numbers
  const UpdateDecision* decision;
  Masters<T> masters;
  const T* gradient;
  T* m;
  const T* moment;
  __device__ void operator()(const Scalars& s, std::int64_t i) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    auto ms = load_pack<V>(m + i);
    for (int k = 0; k < V; ++k) {
      ps.x[k] = s.apply(ps.x[k], gs.x[k], ms.x[k], s.step(moment[(i + k) / op.block]));
    }
    store_pack(m + i, ms);
    masters.store(i, ps, s.update);
  }
};

void block_squares(const KernelCtx& ctx, const BlockSquares& op, const View& workspace) {
  const auto run = [&]<class T>(const T* g) {
    sum_runs(ctx, PlainNumbers<T>{g}, op.block, op.out, workspace);
  };
  op.dtype() == DType::f64 ? run(op.g.as<const double>()) : run(op.g.as<const float>());
}

void block_moments(const KernelCtx& ctx, const BlockMoments& op, const View&) {
  const std::int64_t count = op.moment.numel();
  const auto run = [&]<class T>(T* moment) {
    launch_grid(ctx, {static_cast<unsigned>(ceil_div(count, kMapThreads)), kMapThreads},
                advance_moments<T>, op, op.squares.as<double>(), moment, count,
                op.decision.as<UpdateDecision>());
  };
  op.dtype() == DType::f64 ? run(op.moment.as<double>()) : run(op.moment.as<float>());
}

void block_adam_update(const KernelCtx& ctx, const BlockAdamUpdate& op, const View&) {
  const UpdateOperands& to = op.to;
  const MapShape shape(to.gradient, to.parameter, op.m, to.compute_copy, to.remainder);
  with_master_type(to.gradient.dtype, shape.width, [&]<class T, int V>() {
    launch_update(ctx, BlockAdamPacks<T, V>{op, op.decision.as<UpdateDecision>(), Masters<T>(to),
                                            to.gradient.as<T>(), op.m.as<T>(), op.moment.as<T>()});
  });
}

}  // namespace

void add_block_moments_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<BlockSquares, block_squares>());
  rows.push_back(row_of<BlockMoments, block_moments>());
  rows.push_back(row_of<BlockAdamUpdate, block_adam_update>());
}

}  // namespace llmtrain::kernels::cuda
