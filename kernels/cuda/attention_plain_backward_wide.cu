#include "kernels/cuda/attention_plain_backward.cuh"

namespace llmtrain::kernels::cuda {
template void plain_backward<double>(const KernelCtx&, const AttentionBackward&, const View&);
template void plain_backward<float>(const KernelCtx&, const AttentionBackward&, const View&);
}  // namespace llmtrain::kernels::cuda
