#pragma once
/// Updates in a subspace of the rows or the columns of a matrix: GaLore (arXiv 2403.03507), LDAdam
/// (arXiv 2410.16103).

#include <algorithm>
#include <cmath>

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// The singular vectors of g [m, n] of its shorter side that belong to its largest singular values,
/// in falling order: where m >= n the rows of `vectors` [r, n], else (and with `left_of_square`
/// where m = n) the columns of `vectors` [m, r]. g and `vectors` FP32 | FP64; all is computed in
/// FP64 and rounded once. What a vector is beyond that is part of the contract:
/// - The first component whose magnitude is the largest, to within kEqual, is positive.
/// - A singular value up to max(m, n) eps of the largest, with eps of g's dtype, is rounding, and
///   so would be its vector. In the place of such vectors those of the axes are taken, in order,
///   made orthogonal to all before: an axis e is the next one if more than half as much of it is
///   left as is of the axes in the mean. (Of a zero g: e_0, e_1, ...)
/// Done only in the first update and every `gap` updates after it; else, and where the decision
/// does not apply, nothing is written. Of a decision that applies to choices alone (gap 1) `apart`
/// says how many updates lie between two, for the cost.
struct TopSingularVectors {
  static constexpr std::string_view name = "top_singular_vectors";
  static constexpr double kEqual = 0x1p-20;
  View g, vectors, decision;
  std::int64_t gap = 1, apart = 1;
  bool left_of_square = false;
  void check() const;
  /// A step's mean share of what the rotations and the reduction to a triangle move. Not products.
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.rows(), g.cols(), rank()}; }
  /// Lines of the longer side that join the triangle at once.
  static constexpr std::int64_t kLines = 128;
  std::uint64_t workspace_bytes(int) const;

  bool of_rows() const { return g.rows() > g.cols() || (g.rows() == g.cols() && !left_of_square); }
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

/// The vectors of y made orthonormal, one after the other: the columns of y [n, r], or `of_rows`
/// the rows of y [r, n], where r <= n. Those of q, of y's shape, are the factor of y = q R or y =
/// R^T q with an upper triangle R that has no negative number in its diagonal. FP32 | FP64; all is
/// computed in FP64 and rounded once. y may be q.
/// A vector of which no more than `rounding` of its length is left beside those before it, or no
/// more than rounding^2 of the longest one's (y is a product of two matrices), is rounding. In the
/// place of such vectors those of the axes are taken, after all others: see TopSingularVectors.
/// Nothing is written in the first update, which that is for, and where the decision does not
/// apply.
struct Orthonormalize {
  static constexpr std::string_view name = "orthonormalize";
  View y, q, decision;
  bool of_rows = false;
  double rounding = 0;
  void check() const;
  /// Of what the passes over the vectors move. Not products.
  Cost cost() const;
  DType dtype() const { return y.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {length(), count()}; }
  std::uint64_t workspace_bytes(int) const;

  std::int64_t count() const { return of_rows ? y.rows() : y.cols(); }
  std::int64_t length() const { return of_rows ? y.cols() : y.rows(); }
  bool is_due(const UpdateDecision& d) const { return d.applies() && d.updates > 1; }
};

/// What moments say of the updates before this one, t of them, whose bias is corrected:
///   mean = m / (1 - beta1^t), variance = v / (1 - beta2^t) - mean^2,
/// and zeros where t is 0. All FP32 | FP64 [numel], of one dtype. Where the decision does not
/// apply, nothing is written.
struct UnbiasedMoments {
  static constexpr std::string_view name = "unbiased_moments";
  View m, v, mean, variance, decision;
  double beta1 = 0, beta2 = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return m.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {m.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y = x * x, element by element. FP32 | FP64 [numel], of one dtype; y may be x.
struct SquareElements {
  static constexpr std::string_view name = "square_elements";
  View x, y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// A step in a subspace to which the moments came from another one, in which they were those of t
/// updates: `carried` is m there, and `variance` is UnbiasedMoments' there. With
///   m = carried, v = |(1 - beta2^t) (variance + (carried / (1 - beta1^t))^2)|,
/// or zeros where t is 0, y is what a parameter of the rule with lr 1 would lose by the gradient g;
/// m and v advance. All FP32 | FP64 [numel], of one dtype; y may be g. Where the decision does not
/// apply, nothing is written.
struct CarriedStep {
  static constexpr std::string_view name = "carried_step";
  View g, carried, variance, m, v, y, decision;
  rules::Adam rule;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
