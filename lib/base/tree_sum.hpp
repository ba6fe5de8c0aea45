#pragma once
/// A sum whose order is fixed by the number of terms alone.

#include <cstddef>
#include <span>

namespace llmtrain {

/// Joins neighbours in pairs, level by level; the last of an odd level passes unchanged. Aligned
/// runs of 2^k terms are therefore subtrees that may be summed elsewhere. Overwrites `terms`; 0 if
/// empty.
inline double tree_sum(std::span<double> terms) {
  if (terms.empty()) return 0;
  for (std::size_t count = terms.size(); count > 1; count = (count + 1) / 2) {
    for (std::size_t i = 0; i < count / 2; ++i) terms[i] = terms[2 * i] + terms[2 * i + 1];
    if (count % 2 == 1) terms[count / 2] = terms[count - 1];
  }
  return terms[0];
}

}  // namespace llmtrain
