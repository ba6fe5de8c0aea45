#include "kernels/cuda/attention_plain_forward.cuh"

namespace llmtrain::kernels::cuda {
template void plain_forward<double>(const KernelCtx&, const AttentionForward&, const View&);
template void plain_forward<float>(const KernelCtx&, const AttentionForward&, const View&);
}  // namespace llmtrain::kernels::cuda
