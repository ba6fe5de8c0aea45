#include "kernels/cuda/attention_tensor_forward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_forward<bf16, 64>(const KernelCtx&, const AttentionForward&, const View&);
template void tensor_forward<f16, 64>(const KernelCtx&, const AttentionForward&, const View&);
}  // namespace llmtrain::kernels::cuda
