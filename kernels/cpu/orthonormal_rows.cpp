// Gram and Schmidt's way in FP64, from a vector to those behind it, and a second time before a
// vector is scaled: what rounding left of the others in the first pass is gone after that.
#include "kernels/cpu/orthonormal_rows.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.hpp"

namespace llmtrain::kernels {

namespace {

/// v loses what it has of `row`, whose length is 1.
void take_away(const double* row, double* v, std::int64_t n, const RowLoops& loops) {
  const double part = loops.products(row, v, n).pq;
  for (std::int64_t j = 0; j < n; ++j) v[j] -= part * row[j];
}

void divide(double* v, double by, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) v[j] /= by;
}

template <class T>
class OrthonormalRows {
 public:
  OrthonormalRows(const Orthonormalize& op, const View& workspace, int threads,
                  const RowLoops& loops)
      : op_(op),
        threads_(threads),
        loops_(loops),
        r_(op.count()),
        n_(op.length()),
        rows_(workspace.as<double>()),
        left_(rows_ + r_ * n_),
        length_(left_ + n_),
        order_(reinterpret_cast<std::int64_t*>(length_ + r_)) {}

  void compute() {
    read();
    complete_by_axes({rows_, n_, order_}, take_turns(), r_, left_, loops_);
    T* const to = op_.q.template as<T>();
    for (std::int64_t k = 0; k < r_; ++k) {
      for (std::int64_t j = 0; j < n_; ++j) to[place(k, j)] = static_cast<T>(row(k)[j]);
    }
  }

 private:
  double* row(std::int64_t k) const { return rows_ + k * n_; }
  double length_of(const double* v) const { return std::sqrt(loops_.products(v, v, n_).pp); }
  std::int64_t place(std::int64_t k, std::int64_t j) const {
    return op_.of_rows ? k * n_ + j : j * r_ + k;
  }

  /// Times a power of two that takes the largest magnitude near 1.
  void read() {
    const T* const y = op_.y.template as<T>();
    double largest = 0;
    for (std::int64_t e = 0; e < r_ * n_; ++e) {
      largest = std::max(largest, std::abs(static_cast<double>(y[e])));
    }
    const int exponent = largest == 0 ? 0 : -std::ilogb(largest);
    for (std::int64_t k = 0; k < r_; ++k) {
      for (std::int64_t j = 0; j < n_; ++j) {
        row(k)[j] = std::ldexp(static_cast<double>(y[place(k, j)]), exponent);
      }
      length_[k] = length_of(row(k));
    }
  }

  /// Returns how many rows are more than rounding; those are orthonormal then and the first in
  /// `order_`.
  std::int64_t take_turns() {
    const double longest = *std::max_element(length_, length_ + r_);
    const double least = op_.rounding * op_.rounding * longest;
    std::int64_t known = 0;
    for (std::int64_t k = 0; k < r_; ++k) {
      double* const v = row(k);
      for (std::int64_t i = 0; i < known; ++i) take_away(row(order_[i]), v, n_, loops_);
      const double left = length_of(v);
      if (!(left > std::max(op_.rounding * length_[k], least))) {
        length_[k] = 0;
        continue;
      }
      divide(v, left, n_);
      order_[known++] = k;
      parallel_blocks(threads_, r_ - k - 1, 1, [&](std::int64_t next, std::int64_t) {
        take_away(v, row(k + 1 + next), n_, loops_);
      });
    }
    for (std::int64_t k = 0, at = known; k < r_; ++k) {
      if (length_[k] == 0) order_[at++] = k;
    }
    return known;
  }

  const Orthonormalize& op_;
  int threads_;
  const RowLoops& loops_;
  std::int64_t r_, n_;
  double *rows_, *left_, *length_;
  std::int64_t* order_;
};

}  // namespace

void complete_by_axes(const OrderedRows& rows, std::int64_t known, std::int64_t wanted,
                      double* left, const RowLoops& loops) {
  if (known == wanted) return;
  const std::int64_t n = rows.n;
  std::fill_n(left, n, 1.0);  // of each axis, its square outside of the rows so far
  const auto count = [&](const double* v) {
    for (std::int64_t j = 0; j < n; ++j) left[j] -= v[j] * v[j];
  };
  for (std::int64_t k = 0; k < known; ++k) count(rows[k]);
  for (std::int64_t k = known; k < wanted; ++k) {
    const double mean = static_cast<double>(n - k) / static_cast<double>(n);
    std::int64_t axis = 0;
    while (axis + 1 < n && !(left[axis] > mean / 2)) ++axis;
    double* const v = rows[k];
    std::fill_n(v, n, 0.0);
    v[axis] = 1;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t i = 0; i < k; ++i) take_away(rows[i], v, n, loops);
    }
    divide(v, std::sqrt(loops.products(v, v, n).pq), n);
    count(v);
  }
}

void orthonormalize(const Orthonormalize& op, const View& workspace, int threads,
                    const RowLoops& loops) {
  if (op.dtype() == DType::f64) {
    OrthonormalRows<double>(op, workspace, threads, loops).compute();
  } else {
    OrthonormalRows<float>(op, workspace, threads, loops).compute();
  }
}

}  // namespace llmtrain::kernels
