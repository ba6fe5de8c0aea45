#pragma once

#include <cstdint>
#include <string>

namespace llmtrain::parallel {

/// "1 and 4 do": the sizes next to `size`, which does not, that divide `whole`.
std::string divisors(std::int64_t whole, std::int64_t size);

}  // namespace llmtrain::parallel
