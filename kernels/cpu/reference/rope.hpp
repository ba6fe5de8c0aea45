#pragma once

#include "kernels/attention.hpp"

namespace llmtrain::kernels::reference {

void rope(const KernelCtx& ctx, const Rope& op, const View& workspace);

}  // namespace llmtrain::kernels::reference
