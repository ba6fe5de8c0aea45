#pragma once

#include <string_view>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// Every position (int32) has a row in the tables, or InternalError naming the kernel and the first
/// that has none.
void check_positions(std::string_view kernel, const View& position, const View& cosine);

}  // namespace llmtrain::kernels
