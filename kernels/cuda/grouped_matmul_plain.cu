#include "kernels/cuda/grouped_matmul.hpp"
#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/plain_tile.cuh"

namespace llmtrain::kernels::cuda {

namespace {

template <class T, GroupedProduct product>
using Operands = GroupedOperands<T, T, product, plain_tile::Tile<T>::kSize>;

template <class T, GroupedProduct product>
__global__ void __launch_bounds__(plain_tile::kThreads, 2)
    grouped_kernel(Operands<T, product> operands) {
  ExpertProduct<T, T> part;
  if (!operands.find(part)) return;
  plain_tile::Product<T, T> of_expert{};
  of_expert.a = part.a;
  of_expert.b = part.b;
  of_expert.c = part.c;
  of_expert.accumulate = operands.accumulate;
  plain_tile::multiply_tile(of_expert, part.first_row, part.first_col);
}

template <class T>
void multiply(const KernelCtx& ctx, const GroupedMatmul& op) {
  with_product(op.product, [&]<GroupedProduct product>() {
    const Operands<T, product> operands(op);
    launch_grid(ctx, {operands.blocks(), plain_tile::kThreads}, grouped_kernel<T, product>,
                operands);
  });
}

}  // namespace

void plain_grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op) {
  op.a.dtype == DType::f64 ? multiply<double>(ctx, op) : multiply<float>(ctx, op);
}

}  // namespace llmtrain::kernels::cuda
