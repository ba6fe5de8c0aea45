#pragma once
/// Tiled attention: fp32, bf16 and fp16 here, fp64 by the plain kernels. Products run in FP32 on
/// blocks that are converted once per tile.

#include "kernels/attention.hpp"

namespace llmtrain::kernels::fast {

void attention_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace);
void attention_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace);
void attention_merge(const KernelCtx& ctx, const AttentionMerge& op, const View& workspace);
void rope(const KernelCtx& ctx, const Rope& op, const View& workspace);

/// One block of queries (forward) or keys (backward) of one head and sequence.
struct AttentionTask {
  std::int64_t sequence = 0;
  std::int64_t head = 0;  // forward only
  std::int64_t kv_head = 0;
  std::int64_t block = 0;
  std::int64_t tq = 0;
  std::int64_t tk = 0;
};

}  // namespace llmtrain::kernels::fast
