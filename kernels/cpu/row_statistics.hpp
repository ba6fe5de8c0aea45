#pragma once
/// What the CPU's kernels know of the logits of a row.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/loss.hpp"

namespace llmtrain::kernels {

/// A row of LogitStatistics::statistics.
template <class Z>
struct RowStatistics {
  Z max = -std::numeric_limits<Z>::infinity();
  Z sum = 0;
  Z at_target = 0;
};

/// Row i of all parts together. A part without anything but -inf adds nothing.
template <class Z>
RowStatistics<Z> joined_statistics(const CrossEntropy& op, std::int64_t i) {
  const auto* const rows = op.statistics.as<RowStatistics<Z>>();
  RowStatistics<Z> all;
  for (std::int64_t p = 0; p < op.parts(); ++p) {
    all.max = std::max(all.max, rows[p * op.logits.rows() + i].max);
  }
  for (std::int64_t p = 0; p < op.parts(); ++p) {
    const RowStatistics<Z>& part = rows[p * op.logits.rows() + i];
    if (part.sum != 0) all.sum += part.sum * std::exp(part.max - all.max);
    all.at_target += part.at_target;
  }
  return all;
}

}  // namespace llmtrain::kernels
