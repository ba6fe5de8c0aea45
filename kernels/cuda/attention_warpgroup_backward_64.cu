#include "kernels/cuda/attention_warpgroup_backward.cuh"

namespace llmtrain::kernels::cuda {
template bool warpgroup_backward<bf16, 64>(const KernelCtx&, const AttentionBackward&, const View&,
                                           std::string&);
template bool warpgroup_backward<f16, 64>(const KernelCtx&, const AttentionBackward&, const View&,
                                          std::string&);
}  // namespace llmtrain::kernels::cuda
