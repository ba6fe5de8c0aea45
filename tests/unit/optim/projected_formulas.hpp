#pragma once
/// Formulas of optimizers that work in subspaces of matrices.

#include <numeric>

#include "tests/unit/optim/formulas.hpp"

namespace llmtrain::optim {

/// Eigenvectors of the symmetric a [n, n] as rows, those of the largest values first and their
/// largest component positive: Jacobi's rotations of both sides, more precise than double.
inline std::vector<Values> eigenvectors(std::vector<long double> a, std::size_t n) {
  std::vector<long double> rows(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) rows[i * n + i] = 1;
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0) continue;
        const long double angle = 0.5L * std::atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]);
        const long double c = std::cos(angle), s = std::sin(angle);
        const auto turn = [&](long double& x, long double& y) {
          const long double old = x;
          x = c * old - s * y;
          y = s * old + c * y;
        };
        for (std::size_t k = 0; k < n; ++k) turn(a[k * n + p], a[k * n + q]);
        for (std::size_t k = 0; k < n; ++k) turn(a[p * n + k], a[q * n + k]);
        for (std::size_t k = 0; k < n; ++k) turn(rows[p * n + k], rows[q * n + k]);
      }
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t i, std::size_t j) { return a[i * n + i] > a[j * n + j]; });
  std::vector<Values> vectors;
  for (const std::size_t i : order) {
    Values& v = vectors.emplace_back();
    for (std::size_t k = 0; k < n; ++k) v.push_back(static_cast<double>(rows[i * n + k]));
    const auto largest = std::max_element(
        v.begin(), v.end(), [](double x, double y) { return std::abs(x) < std::abs(y); });
    if (*largest < 0) {
      for (double& x : v) x = -x;
    }
  }
  return vectors;
}

/// What p loses to Adam, but for the rate; eps beside the uncorrected root.
inline Values eps_hat_step(const Values& g, States& states, const Step& s) {
  Values& m = states["m"];
  Values& v = states["v"];
  Values step(g.size());
  m.resize(g.size());
  v.resize(g.size());
  const double rate = std::sqrt(1 - std::pow(0.9, s.t)) / (1 - std::pow(0.8, s.t));
  for (std::size_t i = 0; i < g.size(); ++i) {
    m[i] = 0.8 * m[i] + 0.2 * g[i];
    v[i] = 0.9 * v[i] + 0.1 * g[i] * g[i];
    step[i] = rate * m[i] / (std::sqrt(v[i]) + 1e-6);
  }
  return step;
}

/// Of g [m, n] the two left singular vectors with the largest values, as columns.
inline Values two_left_vectors(const Values& g, std::size_t m, std::size_t n) {
  std::vector<long double> gram(m * m, 0);
  for (std::size_t e = 0; e < m * m; ++e) {
    for (std::size_t k = 0; k < n; ++k) {
      gram[e] += static_cast<long double>(g[e / m * n + k]) * g[e % m * n + k];
    }
  }
  const std::vector<Values> vectors = eigenvectors(gram, m);
  Values columns(m * 2);
  for (std::size_t e = 0; e < m * 2; ++e) columns[e] = vectors[e % 2][e / 2];
  return columns;
}

/// rank 2, update_proj_gap 3, scale 0.5; of matrices that are wider than high.
inline void galore_formula(Values& p, Values g, States& states, const Step& s) {
  Values step;
  double scale = 1;
  if (s.parameter->role() != ParameterRole::matrix) {
    step = eps_hat_step(g, states, s);
  } else {
    const auto m = static_cast<std::size_t>(s.parameter->global_shape()[0]);
    const auto n = static_cast<std::size_t>(s.parameter->global_shape()[1]);
    Values& projector = states["projector"];  // [m, 2]
    if (s.t % 3 == 1) projector = two_left_vectors(g, m, n);
    const Values inside = product(transposed(projector, m, 2), g, 2, m, n);
    step = product(projector, eps_hat_step(inside, states, s), m, 2, n);
    scale = 0.5;
  }
  for (std::size_t i = 0; i < p.size(); ++i) p[i] -= s.lr * scale * step[i];
  shrink(p, s);
}

/// The two columns of y [m, 2] made orthonormal.
inline Values orthonormal_columns(const Values& y, std::size_t m) {
  std::vector<long double> q(y.begin(), y.end());
  const auto dot = [&](std::size_t i, std::size_t j) {
    long double sum = 0;
    for (std::size_t k = 0; k < m; ++k) sum += q[k * 2 + i] * q[k * 2 + j];
    return sum;
  };
  const auto scale = [&](std::size_t i) {
    const long double length = std::sqrt(dot(i, i));
    for (std::size_t k = 0; k < m; ++k) q[k * 2 + i] /= length;
  };
  scale(0);
  for (int pass = 0; pass < 2; ++pass) {
    const long double part = dot(0, 1);
    for (std::size_t k = 0; k < m; ++k) q[k * 2 + 1] -= part * q[k * 2];
  }
  scale(1);
  return Values(q.begin(), q.end());
}

/// rank 2, rho 0.6, with betas and eps as adamw_formula; of matrices that are wider than high.
template <bool has_error>
void ldadamw_formula(Values& p, Values g, States& states, const Step& s) {
  if (s.parameter->role() != ParameterRole::matrix) return adamw_formula(p, g, states, s);
  const auto rows = static_cast<std::size_t>(s.parameter->global_shape()[0]);
  const auto cols = static_cast<std::size_t>(s.parameter->global_shape()[1]);
  Values &projector = states["projector"], &m = states["m"], &v = states["v"];
  projector.resize(rows * 2);
  m.resize(2 * cols);
  v.resize(2 * cols);
  if (has_error) {
    Values& error = states["error"];
    error.resize(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += error[i];
  }
  const double c1 = 1 - std::pow(0.8, s.t - 1), c2 = 1 - std::pow(0.9, s.t - 1);
  const Values before = product(projector, m, rows, 2, cols);
  Values next;
  if (s.t == 1) {
    next = two_left_vectors(g, rows, cols);
  } else {
    Values b(g.size());
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = 0.6 * before[i] / c1 + 0.4 * g[i];
    const Values seen = product(transposed(b, rows, cols), projector, cols, rows, 2);
    next = orthonormal_columns(product(b, seen, rows, cols, 2), rows);
  }
  const Values back = transposed(next, rows, 2), h = product(back, g, 2, rows, cols);
  Values turn = product(back, projector, 2, rows, 2);
  const Values carried = product(turn, m, 2, 2, cols);
  const Values kept = product(next, h, rows, 2, cols),
               after = product(next, carried, rows, 2, cols);
  for (std::size_t i = 0; has_error && i < g.size(); ++i) {
    states["error"][i] = g[i] - kept[i] + 4 * (before[i] - after[i]);
  }
  for (double& x : turn) x *= x;
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = s.t == 1 ? 0 : v[i] / c2 - m[i] * m[i] / c1 / c1;
  v = product(turn, v, 2, 2, cols);
  Values step(2 * cols);
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (s.t > 1) v[i] = std::abs(c2 * (v[i] + carried[i] * carried[i] / c1 / c1));
    m[i] = 0.8 * carried[i] + 0.2 * h[i];
    v[i] = 0.9 * v[i] + 0.1 * h[i] * h[i];
    step[i] = m[i] / (1 - std::pow(0.8, s.t)) / (std::sqrt(v[i] / (1 - std::pow(0.9, s.t))) + 1e-6);
  }
  projector = next;
  step = product(next, step, rows, 2, cols);
  shrink(p, s);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] -= s.lr * step[i];
}

}  // namespace llmtrain::optim
