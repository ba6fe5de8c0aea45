// Sends attention to the kernel that attention_rule names.
#include "kernels/cuda/attention.hpp"

#include "kernels/cuda/rows.hpp"

namespace llmtrain::kernels::cuda {

namespace {

void forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  plain_forward(ctx, op, workspace);
}

void backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  plain_backward(ctx, op, workspace);
}

}  // namespace

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, forward>());
  rows.push_back(row_of<AttentionBackward, backward>());
}

}  // namespace llmtrain::kernels::cuda
