// Sends attention to the kernel that attention_rule names.
#include "kernels/cuda/attention.hpp"

#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/attention.hpp"

namespace llmtrain::kernels::cuda {

namespace {

bool all_aligned(std::initializer_list<View> views) {
  for (const View& view : views) {
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0 ||
        static_cast<std::size_t>(view.row_stride) * size_of(view.dtype) % 16 != 0) {
      return false;
    }
  }
  return true;
}

void forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  switch (attention_rule(op.shape, op.q.dtype, all_aligned({op.q, op.k, op.v, op.out}))) {
    case AttentionKernel::plain:
      return plain_forward(ctx, op, workspace);
    case AttentionKernel::tensor_64:
      return tensor_forward<64>(ctx, op, workspace);
    case AttentionKernel::tensor_96:
      return tensor_forward<96>(ctx, op, workspace);
    case AttentionKernel::tensor_128:
      return tensor_forward<128>(ctx, op, workspace);
    case AttentionKernel::tensor_256:
      return tensor_forward<256>(ctx, op, workspace);
  }
}

void backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  const bool aligned = all_aligned({op.q, op.k, op.v, op.out, op.dout, op.dq, op.dk, op.dv});
  switch (attention_rule(op.shape, op.q.dtype, aligned)) {
    case AttentionKernel::plain:
      return plain_backward(ctx, op, workspace);
    case AttentionKernel::tensor_64:
      return tensor_backward<64>(ctx, op, workspace);
    case AttentionKernel::tensor_96:
      return tensor_backward<96>(ctx, op, workspace);
    case AttentionKernel::tensor_128:
      return tensor_backward<128>(ctx, op, workspace);
    case AttentionKernel::tensor_256:
      return tensor_backward<256>(ctx, op, workspace);
  }
}

}  // namespace

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, forward>());
  rows.push_back(row_of<AttentionBackward, backward>());
}

}  // namespace llmtrain::kernels::cuda
