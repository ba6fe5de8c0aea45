#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/loss.hpp"

namespace llmtrain::kernels {

/// Every id lies in [first, end), or DataError naming the first row whose id does not.
void check_ids(std::string_view kernel, const View& ids, std::int64_t first, std::int64_t end);

/// The table's row that look-up i of an embedding kernel asks for; -1 where another part has it.
template <class Op>
std::int64_t entry_of(const Op& op, const View& table, std::int64_t i) {
  const std::int64_t entry = op.id.template as<std::int32_t>()[i] - op.part.first;
  return entry >= 0 && entry < table.rows() ? entry : -1;
}

}  // namespace llmtrain::kernels
