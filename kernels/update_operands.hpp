#pragma once
/// What kernels that update parameters ask of their operands, and what these cost.

#include "kernels/operands.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// Checks the masters, in whichever form, and the gradient, which has their dtype.
void check_update(const Operands& operands, const UpdateOperands& to);
/// What an update moves of master, copy and gradient.
Cost update_cost(const UpdateOperands& to);

}  // namespace llmtrain::kernels
