#pragma once

#include "kernels/loss.hpp"

namespace llmtrain::kernels::fast {

void embedding_forward(const KernelCtx& ctx, const EmbeddingForward& op, const View& workspace);
/// Threads share out columns, so that each adds the rows of its columns in ascending order.
void embedding_backward(const KernelCtx& ctx, const EmbeddingBackward& op, const View& workspace);

}  // namespace llmtrain::kernels::fast
