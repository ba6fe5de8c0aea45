#pragma once
/// Singular vectors of one matrix, by rotations of the rows of its triangle.

#include "kernels/cpu/row_loops.hpp"
#include "kernels/projected.hpp"

namespace llmtrain::kernels {

/// What TopSingularVectors asks for, whatever its decision says. The bits do not depend on the
/// number of threads. `workspace` has op.workspace_bytes().
void top_singular_vectors(const TopSingularVectors& op, const View& workspace, int threads,
                          const RowLoops& loops);

}  // namespace llmtrain::kernels
