#include "kernels/cuda/attention_tensor_backward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_backward<bf16, 64>(const KernelCtx&, const AttentionBackward&, const View&);
template void tensor_backward<f16, 64>(const KernelCtx&, const AttentionBackward&, const View&);
}  // namespace llmtrain::kernels::cuda
