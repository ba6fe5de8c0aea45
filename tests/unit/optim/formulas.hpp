#pragma once
/// The optimizers as their papers have them, in double: one step of one parameter, whose gradient
/// is clipped.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/eight_bit.hpp"
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

inline double mean_square(const Values& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return squares / static_cast<double>(x.size());
}

/// A second moment in factors, of which a vector has that of its columns alone.
class FactoredMoment {
 public:
  FactoredMoment(States& states, const Step& s, const std::string& row, const std::string& column)
      : is_matrix_(s.parameter->global_shape().rank() > 1), column_(&states[column]) {
    const Shape& shape = s.parameter->global_shape();
    rows_ = is_matrix_ ? static_cast<std::size_t>(shape[0]) : 1;
    columns_ = static_cast<std::size_t>(shape.numel()) / rows_;
    column_->resize(columns_);
    if (!is_matrix_) return;
    row_ = &states[row];
    row_->resize(rows_);
  }
  void advance(const Values& x, double beta2, double eps) {
    Values of_rows(rows_), of_columns(columns_);
    for (std::size_t e = 0; e < x.size(); ++e) {
      const double square = x[e] * x[e] + eps;
      of_rows[e / columns_] += square / static_cast<double>(columns_);
      of_columns[e % columns_] += square / static_cast<double>(rows_);
    }
    advance(*column_, of_columns, beta2);
    if (is_matrix_) advance(*row_, of_rows, beta2);
  }
  Values scaled(Values x) const {
    double mean = 0;
    if (is_matrix_) {
      for (const double r : *row_) mean += r / static_cast<double>(rows_);
    }
    for (std::size_t e = 0; e < x.size(); ++e) {
      const double moment = is_matrix_ ? (*row_)[e / columns_] / mean : 1;
      x[e] /= std::sqrt(moment * (*column_)[e % columns_]);
    }
    return x;
  }

 private:
  static void advance(Values& moment, const Values& means, double beta2) {
    for (std::size_t i = 0; i < moment.size(); ++i) {
      moment[i] = beta2 * moment[i] + (1 - beta2) * means[i];
    }
  }
  bool is_matrix_;
  std::size_t rows_ = 1, columns_ = 1;
  Values* row_ = nullptr;
  Values* column_;
};

inline void clip_step(Values& u, double threshold) {
  const double divisor = std::max(1.0, std::sqrt(mean_square(u)) / threshold);
  for (double& x : u) x /= divisor;
}

template <bool has_momentum>
void adafactor_formula(Values& p, Values g, States& states, const Step& s) {
  FactoredMoment moment(states, s, "row", "column");
  moment.advance(g, 1 - std::pow(s.t, -0.7), 1e-30);
  Values u = moment.scaled(g);
  clip_step(u, 0.5);
  const double rate = s.lr * std::max(std::sqrt(mean_square(p)), 1e-3);
  shrink(p, s);
  for (std::size_t i = 0; i < p.size(); ++i) {
    double step = rate * u[i];
    if (has_momentum) step = states["m"][i] = 0.8 * states["m"][i] + 0.2 * step;
    p[i] -= step;
  }
}

inline void came_formula(Values& p, Values g, States& states, const Step& s) {
  FactoredMoment moment(states, s, "row", "column");
  moment.advance(g, 0.9, 1e-20);
  Values u = moment.scaled(g);
  clip_step(u, 0.5);
  Values& m = states["m"];
  Values difference(u.size());
  for (std::size_t i = 0; i < u.size(); ++i) {
    m[i] = 0.8 * m[i] + 0.2 * u[i];
    difference[i] = u[i] - m[i];
  }
  Values step = m;
  if (s.parameter->global_shape().rank() > 1) {
    FactoredMoment residual(states, s, "residual_row", "residual_column");
    residual.advance(difference, 0.95, 1e-10);
    step = residual.scaled(m);
  }
  shrink(p, s);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] -= s.lr * step[i];
}

template <bool has_momentum>
void sm3_formula(Values& p, Values g, States& states, const Step& s) {
  const Shape& shape = s.parameter->global_shape();
  const bool is_matrix = shape.rank() > 1;
  const std::size_t rows = is_matrix ? static_cast<std::size_t>(shape[0]) : 1;
  const std::size_t columns = p.size() / rows;
  Values& column = states["column"];
  column.resize(columns);
  if (is_matrix) states["row"].resize(rows);
  Values row = is_matrix ? states["row"] : Values(1, INFINITY), new_row(rows), new_column(columns);
  shrink(p, s);
  for (std::size_t e = 0; e < p.size(); ++e) {
    const double bound = std::min(row[e / columns], column[e % columns]) + g[e] * g[e];
    new_row[e / columns] = std::max(new_row[e / columns], bound);
    new_column[e % columns] = std::max(new_column[e % columns], bound);
    double step = g[e] / std::sqrt(bound + 1e-30);
    if (has_momentum) step = states["m"][e] = 0.8 * states["m"][e] + 0.2 * step;
    p[e] -= s.lr * step;
  }
  column = new_column;
  if (is_matrix) states["row"] = new_row;
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

/// A state as codes in blocks of 256 with the blocks' scales, of which each has its nearest code
/// and below zero none of zero.
class CodedState {
 public:
  CodedState(States& states, const std::string& name, bool is_signed)
      : map_(kernels::dynamic_map_of(is_signed ? 0 : 1).values),
        codes_(&states[name]),
        scales_(&states[name + "_scale"]) {
    scales_->resize((codes_->size() + 255) / 256);
  }
  double get(std::size_t i) const {
    const auto scale = static_cast<float>((*scales_)[i / 256]);
    return map_[static_cast<std::size_t>((*codes_)[i])] * scale;
  }
  void put(const Values& values) {
    for (std::size_t begin = 0; begin < values.size(); begin += 256) {
      const std::size_t end = std::min(begin + 256, values.size());
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::abs(static_cast<float>(values[i])));
      }
      (*scales_)[begin / 256] = largest;
      for (std::size_t i = begin; i < end; ++i) (*codes_)[i] = code_of(values[i] / largest);
    }
  }

 private:
  double code_of(double x) const {
    std::size_t best = 0;
    for (std::size_t c = 1; c < map_.size(); ++c) {
      if (std::abs(map_[c] - x) < std::abs(map_[best] - x)) best = c;
    }
    if (x < 0 && map_[best] == 0) --best;
    return static_cast<double>(best);
  }

  const std::array<float, 256>& map_;
  Values *codes_, *scales_;
};

inline void adamw_8bit_formula(Values& p, Values g, States& states, const Step& s) {
  CodedState m(states, "m", true), v(states, "v", false);
  States whole;
  for (std::size_t i = 0; i < p.size(); ++i) {
    whole["m"].push_back(m.get(i));
    whole["v"].push_back(v.get(i));
  }
  adamw_formula(p, g, whole, s);
  m.put(whole["m"]);
  v.put(whole["v"]);
}

template <Decay decay>
void lion_8bit_formula(Values& p, Values g, States& states, const Step& s) {
  CodedState m(states, "m", true);
  States whole;
  for (std::size_t i = 0; i < p.size(); ++i) whole["m"].push_back(m.get(i));
  lion_formula<decay>(p, g, whole, s);
  m.put(whole["m"]);
}

}  // namespace llmtrain::optim
