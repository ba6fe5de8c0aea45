#pragma once

#include "kernels/attention.hpp"

namespace llmtrain::kernels {

/// Every position has a row in the tables, or InternalError naming the first that has none.
void check_positions(const Rope& op);

}  // namespace llmtrain::kernels
