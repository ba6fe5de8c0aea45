#pragma once
/// Second moments of matrices in two factors, one value per row and one per column: Adafactor
/// (arXiv 1804.04235), CAME (arXiv 2307.02047); and their like for SM3 (arXiv 1901.11150). A
/// parameter is one or several matrices (experts), one after the other; a vector is a matrix of one
/// row, which needs no factor for its row. Sums that go over a whole matrix are FP64 and stand
/// alone, so that ranks that have parts of it can add theirs up.

#include <algorithm>

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// Matrices of one shape, one after the other, each row-major.
struct Matrices {
  std::int64_t count = 1, rows = 1, columns = 1;
  std::int64_t numel() const { return count * rows * columns; }
};

/// out[k, j] = sum over i of x[k, i, j]^2. x FP32 | FP64 [count, rows, columns]; out FP64 [count,
/// columns]. The order is part of the contract: kChunk rows add up one after the other, in FP64,
/// and so do the sums of these chunks.
struct ColumnSquares {
  static constexpr std::string_view name = "column_squares";
  static constexpr std::int64_t kChunk = 128;
  static constexpr std::int64_t chunks(std::int64_t rows) { return (rows + kChunk - 1) / kChunk; }
  View x;
  Matrices shape;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// out[k] = sum of the values of row k. x FP32 | FP64 [out.numel(), n]; out FP64. Value i adds to
/// lane i % kLanes; the lanes are joined as a tree: lane l += lane l + kLanes / 2, and so on.
struct RowTotals {
  static constexpr std::string_view name = "row_totals";
  static constexpr int kLanes = 256;
  View x, out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// out[k] = sum of the squares of run k of the masters, in the order in which SquaredNorm sums a
/// gradient of just these values; out FP64, runs of to.numel() / out.numel() elements. Of `to` only
/// the masters are read.
struct MasterSquares {
  static constexpr std::string_view name = "master_squares";
  UpdateOperands to;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.numel()}; }
  std::uint64_t workspace_bytes(int) const { return chunk_sums_bytes(out.numel(), each()); }
  std::int64_t each() const { return out.numel() == 0 ? 0 : to.numel() / out.numel(); }
};

/// y = x scale (1 / sqrt(row / mean)) (1 / sqrt(column)) of each element's row and column, where
/// `totals` FP64 [count] are the sums of `all_rows` values of rows that make the mean; without
/// `rows` the first root is 1. scale: the decision's grad_scale where x is the gradient, else 1.
/// rows [count, rows], columns [count, columns], x and y, which may be x, in one dtype. Where the
/// decision does not apply, nothing is written.
struct FactoredScale {
  static constexpr std::string_view name = "factored_scale";
  View x, rows, totals, columns;
  Matrices shape;
  std::int64_t all_rows = 1;
  bool is_gradient = true;
  View decision;
  View y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// Of a row, where the rows' mean is that; of a column. Constexpr, so that device code has the
  /// very same operations.
  template <class T>
  static constexpr T row_factor(T row, T mean) {
    return T{1} / std::sqrt(row / mean);
  }
  template <class T>
  static constexpr T column_factor(T column) {
    return T{1} / std::sqrt(column);
  }
  constexpr double mean(double total) const { return total / static_cast<double>(all_rows); }
};

/// How far a step u of a matrix is too long: max(1, RMS(u) / threshold), where `squares` FP64
/// [matrices] are sums of its squares, of `numel` elements each. Without `squares`: 1.
struct StepClip {
  View squares;
  std::int64_t numel = 1;
  double threshold = 1;

  constexpr double divisor(double sum_of_squares) const {
    const double rms = std::sqrt(sum_of_squares / static_cast<double>(numel));
    return rms > threshold ? rms / threshold : 1;
  }
  /// For kernels of the CPU.
  double divisor_of(std::int64_t matrix) const {
    return squares.defined() ? divisor(squares.as<double>()[matrix]) : 1;
  }
};

/// An update by steps u [numel] that are there: with lr = lr_scale times the decision's,
///   p *= 1 - lr weight_decay; rate = (relative ? lr_scale min(decision's lr, t^-0.5) : lr) x
///   max(RMS(p), least_scale), if there is `parameter_squares` FP64 [matrices] of p as it was,
///   rate /= clip's divisor
/// and, without `m`, p -= rate u; with it m = beta1 m + (1 - beta1) v and p -= v's rate m, where v
/// is rate u (`rate_in_moment`, Adafactor) or u (SM3). With `decay_last` p shrinks after that
/// instead. u and m in the master's dtype. Where the decision does not apply, nothing is written.
struct MatrixStepUpdate {
  static constexpr std::string_view name = "matrix_step_update";
  UpdateOperands to;
  View u, m;
  StepClip clip;
  View parameter_squares;
  double least_scale = 1e-3;
  View decision;
  std::int64_t matrices = 1;
  double lr_scale = 1, weight_decay = 0, beta1 = 0;
  bool relative = false, rate_in_moment = true, decay_last = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
  std::int64_t each() const { return to.numel() / matrices; }
  /// What parameter_squares make of the rate.
  constexpr double scale(double sum_of_squares) const {
    const double rms = std::sqrt(sum_of_squares / static_cast<double>(clip.numel));
    return rms > least_scale ? rms : least_scale;
  }
  /// On the rate of a matrix; for kernels of the CPU.
  double factor_of(std::int64_t matrix) const {
    const View& squares = parameter_squares;
    return (squares.defined() ? scale(squares.as<double>()[matrix]) : 1) / clip.divisor_of(matrix);
  }
};

/// As in update_scalars.hpp, of one matrix.
template <class T>
struct MatrixStepScalars {
  T kept_before, kept_after, rate, beta1, one_minus_beta1;
  bool rate_in_moment;
  std::uint64_t update;

  /// `factor`: the scale over clip's divisor.
  constexpr MatrixStepScalars(const MatrixStepUpdate& op, const UpdateDecision& d, double factor)
      : kept_before(static_cast<T>(op.decay_last ? 1 : kept(op, d))),
        kept_after(static_cast<T>(op.decay_last ? kept(op, d) : 1)),
        rate(static_cast<T>(op.lr_scale * rate_of(op, d) * factor)),
        beta1(static_cast<T>(op.beta1)),
        one_minus_beta1(static_cast<T>(1 - op.beta1)),
        rate_in_moment(op.rate_in_moment),
        update(static_cast<std::uint64_t>(d.updates)) {}

  constexpr T apply(T p, T u) const { return (p * kept_before - rate * u) * kept_after; }
  /// Advances m.
  constexpr T apply(T p, T u, T& m) const {
    if (rate_in_moment) {
      m = beta1 * m + one_minus_beta1 * (rate * u);
      return (p * kept_before - m) * kept_after;
    }
    m = beta1 * m + one_minus_beta1 * u;
    return (p * kept_before - rate * m) * kept_after;
  }

 private:
  static constexpr double kept(const MatrixStepUpdate& op, const UpdateDecision& d) {
    return 1 - d.lr * op.lr_scale * op.weight_decay;
  }
  static constexpr double rate_of(const MatrixStepUpdate& op, const UpdateDecision& d) {
    const double most = 1 / std::sqrt(d.updates);
    return op.relative && most < d.lr ? most : d.lr;
  }
};

/// CAME's first moment of steps: m = beta1 m + (1 - beta1) u / clip's divisor; u becomes what the
/// clipped step differs from it. m, u FP32 | FP64 [numel]. Where the decision does not apply,
/// nothing is written.
struct CameMoment {
  static constexpr std::string_view name = "came_moment";
  View u, m;
  StepClip clip;
  View decision;
  std::int64_t matrices = 1;
  double beta1 = 0.9;
  void check() const;
  Cost cost() const;
  DType dtype() const { return u.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {u.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// Of one element; advances m.
  template <class T>
  static constexpr T residual(T u, T divisor, T beta1, T one_minus_beta1, T& m) {
    const T clipped = u / divisor;
    m = beta1 * m + one_minus_beta1 * clipped;
    return clipped - m;
  }
};

/// SM3's bounds of sums of squares: with n = min(row, column) + g^2 of each element, of g =
/// gradient times the decision's grad_scale, new_rows are the largest n of each row and new_columns
/// those of each column; without `rows` the bound is that of the column. rows, new_rows [count,
/// rows] (both absent or none), columns, new_columns [count, columns], g in one dtype, FP32 | FP64.
/// Bounds are at least +0, and neither they nor g are NaN where the decision applies. Where it does
/// not, the new ones are the old ones.
struct CoverMaxima {
  static constexpr std::string_view name = "cover_maxima";
  View g, rows, columns;
  Matrices shape;
  View decision;
  View new_rows, new_columns;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  /// The largest of each column that a thread has seen; the first has new_columns.
  std::uint64_t workspace_bytes(int threads) const {
    return static_cast<std::uint64_t>(std::max(threads, 1) - 1) * columns.bytes();
  }
};

/// u = g (1 / sqrt(n + eps)), with n and g as in CoverMaxima. Where the decision does not apply,
/// nothing is written.
struct CoverScale {
  static constexpr std::string_view name = "cover_scale";
  View g, rows, columns;
  Matrices shape;
  double eps = 1e-30;
  View decision;
  View u;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// The bound of one element's sum of squares, with its clipped gradient in it; without a bound of
/// its row, that is the column's.
template <class T>
constexpr T covered(T row, T column, T g) {
  return (row < column ? row : column) + g * g;
}

}  // namespace llmtrain::kernels
