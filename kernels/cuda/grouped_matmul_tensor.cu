#include "kernels/cuda/grouped_matmul.hpp"
#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/tensor_tile.cuh"

namespace llmtrain::kernels::cuda {

namespace {

/// Gradients of weights are added in FP32.
template <class T, GroupedProduct product>
using ResultType = std::conditional_t<product == GroupedProduct::weight_grad, float, T>;

template <class T, GroupedProduct product>
using Operands = GroupedOperands<T, ResultType<T, product>, product, tensor_tile::kSize>;

template <class T, GroupedProduct product, bool kPacked>
__global__ void __launch_bounds__(tensor_tile::kThreads, 2)
    grouped_kernel(Operands<T, product> operands, bool pairs) {
  using C = ResultType<T, product>;
  using O = Operands<T, product>;
  ExpertProduct<T, C> part;
  if (!operands.find(part)) return;
  const tensor_tile::Result<C> result{part.c, part.a.lines, part.b.lines, operands.accumulate,
                                      pairs};
  tensor_tile::multiply_tile<O::kAdjoinA, O::kAdjoinB, kPacked>(part.a, part.b, result,
                                                                part.first_row, part.first_col);
}

template <class T, GroupedProduct product>
void multiply(const KernelCtx& ctx, const GroupedMatmul& op) {
  using C = ResultType<T, product>;
  constexpr std::size_t kShared = sizeof(tensor_tile::Shared<T>);
  const auto in_chunks = [](const View& view) {
    return view.cols() % tensor_tile::kChunk<T> == 0 && rows_aligned(view, 16);
  };
  const bool pairs = op.c.cols() % 2 == 0 && rows_aligned(op.c, 2 * sizeof(C));
  const auto kernel = in_chunks(op.a) && in_chunks(op.b) ? grouped_kernel<T, product, true>
                                                         : grouped_kernel<T, product, false>;
  const Operands<T, product> operands(op);
  allow_shared(kernel, kShared);
  launch_grid(ctx, {operands.blocks(), tensor_tile::kThreads, kShared}, kernel, operands, pairs);
}

}  // namespace

void tensor_grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op) {
  with_product(op.product, [&]<GroupedProduct product>() {
    switch (op.a.dtype) {
      case DType::bf16:
        return multiply<bf16, product>(ctx, op);
      case DType::f16:
        return multiply<f16, product>(ctx, op);
      default:
        return multiply<float, product>(ctx, op);
    }
  });
}

}  // namespace llmtrain::kernels::cuda
