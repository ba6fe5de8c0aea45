#include "kernels/cuda/attention_tensor_forward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_forward<bf16, 256>(const KernelCtx&, const AttentionForward&, const View&);
template void tensor_forward<f16, 256>(const KernelCtx&, const AttentionForward&, const View&);
}  // namespace llmtrain::kernels::cuda
