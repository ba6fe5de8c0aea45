#include "kernels/cuda/attention_tensor_backward.cuh"

namespace llmtrain::kernels::cuda {
template void tensor_backward<128>(const KernelCtx&, const AttentionBackward&, const View&);
}
