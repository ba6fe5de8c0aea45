#include "kernels/cuda/attention_tensor_forward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_forward<64>(const KernelCtx&, const AttentionForward&, const View&);
}
