#pragma once
/// The backward on tensor cores: bounds and delta, then dq, then dk and dv.

#include "kernels/cuda/attention_tensor_keys.cuh"
#include "kernels/cuda/attention_tensor_queries.cuh"

namespace llmtrain::kernels::cuda {

template <class T, int kDim>
void tensor_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0) return;
  find_bounds(ctx, args);
  const GradientMatrices<T> m{Rows<const T>(op.q),
                              Rows<const T>(op.k),
                              Rows<const T>(op.v),
                              Rows<const T>(op.dout),
                              Results<T>(op.dq),
                              Results<T>(op.dk),
                              Results<T>(op.dv),
                              static_cast<const float*>(op.lse.data),
                              find_delta(ctx, op, args, workspace)};
  query_tiles::gradient<T, kDim>(ctx, args, m);
  key_tiles::gradient<T, kDim>(ctx, args, m);
}

}  // namespace llmtrain::kernels::cuda
