#pragma once
/// The backward on tensor cores: bounds and delta, then dq, then dk and dv.

#include "kernels/cuda/attention_tensor_keys.cuh"
#include "kernels/cuda/attention_tensor_queries.cuh"

namespace llmtrain::kernels::cuda {

template <int kDim>
void tensor_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0) return;
  find_bounds(ctx, args);
  const GradientMatrices m{Rows<const bf16>(op.q),
                           Rows<const bf16>(op.k),
                           Rows<const bf16>(op.v),
                           Rows<const bf16>(op.dout),
                           Rows<bf16>(op.dq),
                           Rows<bf16>(op.dk),
                           Rows<bf16>(op.dv),
                           static_cast<const float*>(op.lse.data),
                           find_delta(ctx, op, args, workspace)};
  query_tiles::gradient<kDim>(ctx, args, m);
  key_tiles::gradient<kDim>(ctx, args, m);
}

}  // namespace llmtrain::kernels::cuda
