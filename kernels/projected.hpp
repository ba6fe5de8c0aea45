#pragma once
/// Updates in a subspace of the rows or the columns of a matrix: GaLore (arXiv 2403.03507).

#include <algorithm>
#include <cmath>

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// The singular vectors of g [m, n] of its shorter side that belong to its largest singular values,
/// in falling order: where m >= n the rows of `vectors` [r, n], else the columns of `vectors`
/// [m, r]. g and `vectors` FP32 | FP64; all is computed in FP64 and rounded once. What a vector is
/// beyond that is part of the contract:
/// - The first component whose magnitude is the largest, to within kEqual, is positive.
/// - A singular value up to max(m, n) eps of the largest, with eps of g's dtype, is rounding, and
///   so would be its vector. In the place of such vectors those of the axes are taken, in order,
///   made orthogonal to all before: an axis e is the next one if more than half as much of it is
///   left as is of the axes in the mean. (Of a zero g: e_0, e_1, ...)
/// Done only in the first update and every `gap` updates after it; else, and where the decision
/// does not apply, nothing is written.
struct TopSingularVectors {
  static constexpr std::string_view name = "top_singular_vectors";
  static constexpr double kEqual = 0x1p-20;
  View g, vectors, decision;
  std::int64_t gap = 1;
  void check() const;
  /// A step's mean share of what the rotations and the reduction to a triangle move. Not products.
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.rows(), g.cols(), rank()}; }
  /// Lines of the longer side that join the triangle at once.
  static constexpr std::int64_t kLines = 128;
  std::uint64_t workspace_bytes(int) const;

  bool of_rows() const { return g.rows() >= g.cols(); }
  std::int64_t side() const { return std::min(g.rows(), g.cols()); }
  std::int64_t rank() const { return of_rows() ? vectors.rows() : vectors.cols(); }
  bool is_due(const UpdateDecision& d) const {
    return d.applies() && std::fmod(d.updates - 1, static_cast<double>(gap)) == 0;
  }
};

/// A step in the subspace: y is what a parameter of the rule with lr 1 would lose by the gradient
/// g, which is clipped; m and v advance. All FP32 | FP64 [numel], of one dtype; y may be g. Where
/// the decision does not apply, nothing is written.
struct SubspaceStep {
  static constexpr std::string_view name = "subspace_step";
  View g, m, v, y, decision;
  rules::AdamEpsHat rule;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
