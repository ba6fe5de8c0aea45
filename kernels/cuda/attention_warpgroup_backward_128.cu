#include "kernels/cuda/attention_warpgroup_backward.cuh"

namespace llmtrain::kernels::cuda {
template bool warpgroup_backward<128>(const KernelCtx&, const AttentionBackward&, const View&,
                                      std::string&);
}
