#pragma once
/// Rows of FP64 numbers that are orthonormal, or are made so.

#include "kernels/cpu/row_loops.hpp"
#include "kernels/projected.hpp"

namespace llmtrain::kernels {

/// Row k of these is row order[k] of a matrix of n columns.
struct OrderedRows {
  double* first;
  std::int64_t n;
  const std::int64_t* order;
  double* operator[](std::int64_t k) const { return first + order[k] * n; }
};

/// Rows `known` to `wanted` become axes made orthogonal to all before, chosen as TopSingularVectors
/// says. The rows before `known` are orthonormal. `left` [n] is scratch.
void complete_by_axes(const OrderedRows& rows, std::int64_t known, std::int64_t wanted,
                      double* left, const RowLoops& loops);

/// What Orthonormalize asks for, whatever its decision says. The bits do not depend on the number
/// of threads. `workspace` has op.workspace_bytes().
void orthonormalize(const Orthonormalize& op, const View& workspace, int threads,
                    const RowLoops& loops);

}  // namespace llmtrain::kernels
