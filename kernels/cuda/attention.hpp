#pragma once
/// The kernels that attention_rule chooses between.

#include "kernels/attention.hpp"

namespace llmtrain::kernels::cuda {

void plain_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace);
void plain_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace);
/// head_dim padded to kDim.
template <int kDim>
void tensor_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace);
template <int kDim>
void tensor_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace);

}  // namespace llmtrain::kernels::cuda
