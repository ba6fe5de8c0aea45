#pragma once
/// The optimizers as their papers have them, in double: one step of one parameter, whose gradient
/// is clipped.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

using Values = std::vector<double>;
using States = std::map<std::string, Values>;

struct Step {
  double lr, weight_decay;
  int t;
  const Parameter* parameter;
};

using Formula = void (*)(Values& p, Values g, States& states, const Step& s);

inline void adam_moments(Values& p, const Values& g, States& states, const Step& s) {
  Values& m = states["m"];
  Values& v = states["v"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    m[i] = 0.8 * m[i] + 0.2 * g[i];
    v[i] = 0.9 * v[i] + 0.1 * g[i] * g[i];
    const double mean = m[i] / (1 - std::pow(0.8, s.t));
    const double square = v[i] / (1 - std::pow(0.9, s.t));
    p[i] -= s.lr * mean / (std::sqrt(square) + 1e-6);
  }
}

inline void adamw_formula(Values& p, Values g, States& states, const Step& s) {
  for (double& x : p) x -= s.lr * s.weight_decay * x;
  adam_moments(p, g, states, s);
}

inline void add_decay(const Values& p, Values& g, const Step& s) {
  for (std::size_t i = 0; i < p.size(); ++i) g[i] += s.weight_decay * p[i];
}

inline void adam_formula(Values& p, Values g, States& states, const Step& s) {
  add_decay(p, g, s);
  adam_moments(p, g, states, s);
}

inline void sgd_formula(Values& p, Values g, States&, const Step& s) {
  add_decay(p, g, s);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] -= s.lr * g[i];
}

inline void momentum_formula(Values& p, Values g, States& states, const Step& s) {
  add_decay(p, g, s);
  Values& b = states["momentum"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    b[i] = s.t == 1 ? g[i] : 0.8 * b[i] + 0.75 * g[i];
    p[i] -= s.lr * b[i];
  }
}

inline void nesterov_formula(Values& p, Values g, States& states, const Step& s) {
  add_decay(p, g, s);
  Values& b = states["momentum"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    b[i] = s.t == 1 ? g[i] : 0.8 * b[i] + g[i];
    p[i] -= s.lr * (g[i] + 0.8 * b[i]);
  }
}

inline void shrink(Values& p, const Step& s) {
  for (double& x : p) x -= s.lr * s.weight_decay * x;
}

inline void adagrad_formula(Values& p, Values g, States& states, const Step& s) {
  add_decay(p, g, s);
  Values& sum = states["sum"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum[i] += g[i] * g[i];
    p[i] -= s.lr / (1 + 0.5 * (s.t - 1)) * g[i] / (std::sqrt(sum[i]) + 1e-6);
  }
}

template <bool centered, bool has_momentum>
void rmsprop_formula(Values& p, Values g, States& states, const Step& s) {
  add_decay(p, g, s);
  for (std::size_t i = 0; i < p.size(); ++i) {
    double& v = states["v"][i];
    v = 0.9 * v + 0.1 * g[i] * g[i];
    double square = v;
    if (centered) {
      double& m = states["m"][i];
      m = 0.9 * m + 0.1 * g[i];
      square -= m * m;
    }
    double step = g[i] / (std::sqrt(square) + 1e-6);
    if (has_momentum) {
      double& b = states["momentum"][i];
      step = b = 0.8 * b + step;
    }
    p[i] -= s.lr * step;
  }
}

enum class Decay { in_gradient, before, after };

template <Decay decay>
void amsgrad_formula(Values& p, Values g, States& states, const Step& s) {
  if (decay == Decay::in_gradient) add_decay(p, g, s);
  if (decay == Decay::before) shrink(p, s);
  Values& m = states["m"];
  Values& v = states["v"];
  Values& v_max = states["v_max"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    m[i] = 0.8 * m[i] + 0.2 * g[i];
    v[i] = 0.9 * v[i] + 0.1 * g[i] * g[i];
    v_max[i] = std::max(v_max[i], v[i]);
    const double mean = m[i] / (1 - std::pow(0.8, s.t));
    const double square = v_max[i] / (1 - std::pow(0.9, s.t));
    p[i] -= s.lr * mean / (std::sqrt(square) + 1e-6);
  }
  if (decay == Decay::after) shrink(p, s);
}

template <Decay decay>
void lion_formula(Values& p, Values g, States& states, const Step& s) {
  if (decay == Decay::before) shrink(p, s);
  Values& m = states["m"];
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double ahead = 0.8 * m[i] + 0.2 * g[i];
    if (ahead != 0) p[i] -= std::copysign(s.lr, ahead);
    m[i] = 0.9 * m[i] + 0.1 * g[i];
  }
  if (decay == Decay::after) shrink(p, s);
}

/// Blocks are heads, rows, or the whole of a norm.
inline void adam_mini_formula(Values& p, Values g, States& states, const Step& s) {
  if (s.parameter->role() == ParameterRole::bias) return adamw_formula(p, g, states, s);
  const Shape& shape = s.parameter->global_shape();
  const auto block = static_cast<std::size_t>(
      shape.rank() == 1 ? shape.numel() : s.parameter->rows_per_head() * shape.cols());
  shrink(p, s);
  Values& m = states["m"];
  Values& v = states["v"];
  v.resize(p.size() / block);
  for (std::size_t b = 0; b < v.size(); ++b) {
    double squares = 0;
    for (std::size_t i = b * block; i < (b + 1) * block; ++i) squares += g[i] * g[i];
    v[b] = 0.9 * v[b] + 0.1 * squares / static_cast<double>(block);
    const double root = std::sqrt(v[b] / (1 - std::pow(0.9, s.t))) + 1e-6;
    for (std::size_t i = b * block; i < (b + 1) * block; ++i) {
      m[i] = 0.8 * m[i] + 0.2 * g[i];
      p[i] -= s.lr * m[i] / (1 - std::pow(0.8, s.t)) / root;
    }
  }
}

/// a [m, k] times b [k, n].
inline Values product(const Values& a, const Values& b, std::size_t m, std::size_t k,
                      std::size_t n) {
  Values c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t p = 0; p < k; ++p) {
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
  }
  return c;
}

inline Values transposed(const Values& a, std::size_t m, std::size_t n) {
  Values t(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) t[j * m + i] = a[i * n + j];
  }
  return t;
}

inline void muon_formula(Values& p, Values g, States& states, const Step& s) {
  if (s.parameter->role() != ParameterRole::matrix) return adamw_formula(p, g, states, s);
  const auto m = static_cast<std::size_t>(s.parameter->global_shape()[0]);
  const auto n = static_cast<std::size_t>(s.parameter->global_shape()[1]);
  Values& mean = states["momentum"];
  Values x(g.size());
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean[i] = 0.8 * mean[i] + 0.2 * g[i];
    x[i] = 0.2 * g[i] + 0.8 * mean[i];
    squares += x[i] * x[i];
  }
  for (double& e : x) e /= std::sqrt(squares);
  // a x + b (x x^T) x + c (x x^T)^2 x, from the left whatever the shape.
  for (int step = 0; step < 3; ++step) {
    const Values gram = product(x, transposed(x, m, n), m, n, m);
    const Values once = product(gram, x, m, m, n);
    const Values twice = product(gram, once, m, m, n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 3.4445 * x[i] - 4.7750 * once[i] + 2.0315 * twice[i];
    }
  }
  const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(m, n)));
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = p[i] * (1 - s.lr * s.weight_decay) - s.lr * factor * x[i];
  }
}

}  // namespace llmtrain::optim
