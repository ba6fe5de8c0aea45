#pragma once

#include <cstdint>
#include <string_view>

#include "lib/tensor/view.hpp"

namespace llmtrain::kernels {

/// Every id lies in [first, end), or DataError naming the first row whose id does not.
void check_ids(std::string_view kernel, const View& ids, std::int64_t first, std::int64_t end);

}  // namespace llmtrain::kernels
