#include "kernels/cuda/attention_warpgroup_forward.cuh"

namespace llmtrain::kernels::cuda {
template bool warpgroup_forward<bf16, 128>(const KernelCtx&, const AttentionForward&, const View&,
                                           std::string&);
template bool warpgroup_forward<f16, 128>(const KernelCtx&, const AttentionForward&, const View&,
                                          std::string&);
}  // namespace llmtrain::kernels::cuda
