#pragma once
/// The kernels that attention_rule chooses between.

#include <string>

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

/// With wgmma, on GPUs of sm_90a; T and kDim as above. False, having done nothing, with the reason
/// in `why`, where the driver does not describe the operands.
template <class T, int kDim>
bool warpgroup_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace,
                       std::string& why);
template <class T, int kDim>
bool warpgroup_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace,
                        std::string& why);

}  // namespace llmtrain::kernels::cuda
