// g = Q R by Householder's reflections, of which only R is kept, so that lines of the longer side
// can join it a few at a time. Then the rows of R are made orthogonal to one another by Jacobi's
// rotations (one-sided, from the left): J R = S V^T, so a row becomes a singular value times its
// vector, and no other matrix has to be turned along. The error is rounding beside the largest
// singular value; in the Gram matrix, which squares them, small ones would drown.
#include "kernels/cpu/singular_vectors.hpp"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <numeric>

#include "kernels/cpu/orthonormal_rows.hpp"
#include "kernels/cpu/parallel.hpp"
#include "lib/base/activity.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::int64_t kLines = TopSingularVectors::kLines;
constexpr std::int64_t kColumns = RowLoops::kColumns;
constexpr std::int64_t kRows = 16;  // of one block of rows that are rotated
constexpr int kMostSweeps = 60;
// Beside elements of which the largest is about 1, a row whose square is below this is nothing.
constexpr double kNothing = 0x1p-200;

template <class T>
class SingularVectors {
 public:
  SingularVectors(const TopSingularVectors& op, const View& workspace, int threads,
                  const RowLoops& loops)
      : op_(op),
        threads_(threads),
        loops_(loops),
        n_(op.side()),
        long_(op.g.numel() / n_),
        r_(workspace.as<double>()),
        lines_(r_ + n_ * n_),
        length_(lines_ + kLines * n_),
        left_(length_ + n_),
        order_(reinterpret_cast<std::int64_t*>(left_ + n_)) {}

  void compute() {
    reduce();
    for (int sweep = 0; sweep < kMostSweeps && rotate_all(); ++sweep) {
    }
    sort();
    const std::int64_t known = normalize();
    complete_by_axes({r_, n_, order_}, known, op_.rank(), left_, loops_);
    for (std::int64_t k = 0; k < op_.rank(); ++k) write(k);
  }

 private:
  double* row(std::int64_t i) const { return r_ + i * n_; }
  double* vector(std::int64_t k) const { return row(order_[k]); }
  double dot(const double* p, const double* q) const { return loops_.products(p, q, n_).pq; }
  /// Of line i of the longer side.
  double element(std::int64_t i, std::int64_t j) const {
    const T* g = op_.g.as<T>();
    return static_cast<double>(op_.of_rows() ? g[i * n_ + j] : g[j * long_ + i]);
  }

  /// A power of two that takes the largest magnitude near 1.
  double scale() const {
    const T* g = op_.g.as<T>();
    double largest = 0;
    for (std::int64_t i = 0; i < op_.g.numel(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(g[i])));
    }
    return largest == 0 ? 1 : std::ldexp(1.0, -std::ilogb(largest));
  }

  void reduce() {
    std::fill_n(r_, n_ * n_, 0.0);
    const double factor = scale();
    for (std::int64_t first = 0; first < long_; first += kLines) {
      const std::int64_t count = std::min(kLines, long_ - first);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t j = 0; j < n_; ++j) lines_[i * n_ + j] = factor * element(first + i, j);
      }
      for (std::int64_t j = 0; j < n_; ++j) reflect(j, count);
    }
  }

  /// Takes column j of the lines to zero by a reflection that changes them and row j.
  void reflect(std::int64_t j, std::int64_t count) {
    double v[kLines], squares = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      v[i] = lines_[i * n_ + j];
      squares += v[i] * v[i];
    }
    if (squares == 0) return;
    double& corner = row(j)[j];
    const double after = -std::copysign(std::sqrt(corner * corner + squares), corner);
    const double first = corner - after, tau = 2 / (first * first + squares);
    corner = after;
    parallel_blocks(threads_, n_ - j - 1, kColumns, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = j + 1 + begin;
      loops_.reflect({.v = v, .first = first, .tau = tau, .count = count, .stride = n_},
                     row(j) + at, lines_ + at, end - begin);
    });
  }

  /// Every pair of rows once, in an order in which neighbouring pairs of blocks have no row in
  /// common (a round robin); false: all were orthogonal.
  bool rotate_all() {
    std::atomic<bool> any = false;
    const auto rotate_blocks = [&](std::int64_t a, std::int64_t b) {
      const std::int64_t end_a = std::min(n_, (a + 1) * kRows),
                         end_b = std::min(n_, (b + 1) * kRows);
      bool turned = false;
      for (std::int64_t p = a * kRows; p < end_a; ++p) {
        for (std::int64_t q = a == b ? p + 1 : b * kRows; q < end_b; ++q) {
          turned = rotate(row(p), row(q)) || turned;
        }
      }
      if (turned) any.store(true, std::memory_order_relaxed);
    };
    const std::int64_t blocks = (n_ + kRows - 1) / kRows, players = blocks + blocks % 2;
    parallel_blocks(threads_, blocks, 1,
                    [&](std::int64_t a, std::int64_t) { rotate_blocks(a, a); });
    for (std::int64_t round = 0; round + 1 < players; ++round) {
      activity::tick();  // a large matrix takes minutes
      parallel_blocks(threads_, players / 2, 1, [&](std::int64_t k, std::int64_t) {
        const std::int64_t others = players - 1;
        const std::int64_t a = (round + k) % others;
        const std::int64_t b = k == 0 ? others : (round - k + others) % others;
        if (std::max(a, b) < blocks) rotate_blocks(std::min(a, b), std::max(a, b));
      });
    }
    return any;
  }

  /// Whether they were not orthogonal. The angle is the smaller one of the two that make them so.
  bool rotate(double* p, double* q) const {
    const RowLoops::Products sums = loops_.products(p, q, n_);
    const double limit = DBL_EPSILON * std::sqrt(static_cast<double>(n_));
    if (sums.pp < kNothing || sums.qq < kNothing) return false;
    if (!(std::abs(sums.pq) > limit * std::sqrt(sums.pp) * std::sqrt(sums.qq))) return false;
    const double zeta = (sums.qq - sums.pp) / (2 * sums.pq);
    const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
    const double c = 1 / std::sqrt(1 + t * t), s = c * t;
    loops_.turn(p, q, c, s, n_);
    return true;
  }

  void sort() {
    for (std::int64_t i = 0; i < n_; ++i) length_[i] = std::sqrt(dot(row(i), row(i)));
    std::iota(order_, order_ + n_, 0);
    std::sort(order_, order_ + n_, [&](std::int64_t a, std::int64_t b) {
      return length_[a] != length_[b] ? length_[a] > length_[b] : a < b;
    });
  }

  /// How many of the vectors asked for are more than rounding; those have length 1 then.
  std::int64_t normalize() {
    const double eps = sizeof(T) == sizeof(float) ? FLT_EPSILON : DBL_EPSILON;
    const double least = eps * static_cast<double>(long_) * length_[order_[0]];
    std::int64_t known = 0;
    while (known < op_.rank() && length_[order_[known]] > std::max(least, std::sqrt(kNothing))) {
      double* const v = vector(known);
      for (std::int64_t j = 0; j < n_; ++j) v[j] /= length_[order_[known]];
      ++known;
    }
    return known;
  }

  void write(std::int64_t k) const {
    const double* const v = vector(k);
    double largest = 0;
    for (std::int64_t j = 0; j < n_; ++j) largest = std::max(largest, std::abs(v[j]));
    std::int64_t first = 0;
    while (first + 1 < n_ && std::abs(v[first]) < (1 - TopSingularVectors::kEqual) * largest) {
      ++first;
    }
    const double sign = v[first] < 0 ? -1 : 1;
    T* const to = op_.vectors.template as<T>();
    for (std::int64_t j = 0; j < n_; ++j) {
      to[op_.of_rows() ? k * n_ + j : j * op_.rank() + k] = static_cast<T>(sign * v[j]);
    }
  }

  const TopSingularVectors& op_;
  int threads_;
  const RowLoops& loops_;
  std::int64_t n_, long_;  // the shorter and the longer side
  double *r_, *lines_, *length_, *left_;
  std::int64_t* order_;
};

}  // namespace

void top_singular_vectors(const TopSingularVectors& op, const View& workspace, int threads,
                          const RowLoops& loops) {
  if (op.dtype() == DType::f64) {
    SingularVectors<double>(op, workspace, threads, loops).compute();
  } else {
    SingularVectors<float>(op, workspace, threads, loops).compute();
  }
}

}  // namespace llmtrain::kernels
