#include "kernels/block_moments.hpp"

#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/reference/squares.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void block_squares(const KernelCtx&, const BlockSquares& op, const View&) {
  with_master_type(op.g.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.out.numel(); ++i) {
      op.out.as<double>()[i] = sum_of_squares(op.g.as<T>() + i * op.block, op.block);
    }
  });
}

void block_moments(const KernelCtx&, const BlockMoments& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.moment.dtype, [&]<class T>() {
    T* const moment = op.moment.as<T>();
    const double beta = op.decay(decision);
    for (std::int64_t i = 0; i < op.moment.numel(); ++i) {
      moment[i] = op.advanced(moment[i], op.squares.as<double>()[i], beta, decision);
    }
  });
}

void block_adam_update(const KernelCtx&, const BlockAdamUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.to, [&]<class T>() {
    const BlockAdamScalars<T> s(op, decision);
    const Masters<T> masters(op.to, s.update);
    for (std::int64_t i = 0; i < op.to.numel(); ++i) {
      const T step = s.step(op.moment.as<T>()[i / op.block]);
      masters.put(i, s.apply(masters.get(i), op.to.gradient.as<T>()[i], op.m.as<T>()[i], step));
    }
  });
}

}  // namespace

void add_block_moments_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<BlockSquares, block_squares>());
  rows.push_back(row_of<BlockMoments, block_moments>());
  rows.push_back(row_of<BlockAdamUpdate, block_adam_update>());
}

}  // namespace llmtrain::kernels::reference
