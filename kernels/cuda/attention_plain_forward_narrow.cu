#include "kernels/cuda/attention_plain_forward.cuh"

namespace llmtrain::kernels::cuda {
template void plain_forward<bf16>(const KernelCtx&, const AttentionForward&, const View&);
template void plain_forward<f16>(const KernelCtx&, const AttentionForward&, const View&);
}  // namespace llmtrain::kernels::cuda
