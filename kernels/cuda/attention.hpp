#pragma once
/// The kernels that attention_rule chooses between.

#include "kernels/attention.hpp"

namespace llmtrain::kernels::cuda {

/// T is any compute type.
template <class T>
void plain_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace);
template <class T>
void plain_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace);
/// T is bf16 or f16; head_dim is padded to kDim.
template <class T, int kDim>
void tensor_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace);
template <class T, int kDim>
void tensor_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace);

}  // namespace llmtrain::kernels::cuda
