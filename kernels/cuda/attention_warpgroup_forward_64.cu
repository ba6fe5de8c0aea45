#include "kernels/cuda/attention_warpgroup_forward.cuh"

namespace llmtrain::kernels::cuda {
template bool warpgroup_forward<64>(const KernelCtx&, const AttentionForward&, const View&,
                                    std::string&);
}
