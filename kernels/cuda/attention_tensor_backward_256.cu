#include "kernels/cuda/attention_tensor_backward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_backward<256>(const KernelCtx&, const AttentionBackward&, const View&);
}
