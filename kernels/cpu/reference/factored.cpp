#include "kernels/factored.hpp"

#include <vector>

#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/reference/squares.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

/// Calls f(matrix, row, column, element).
template <class F>
void for_elements(const Matrices& shape, const F& f) {
  std::int64_t e = 0;
  for (std::int64_t k = 0; k < shape.count; ++k) {
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t j = 0; j < shape.columns; ++j) f(k, i, j, e++);
    }
  }
}

void column_squares(const KernelCtx&, const ColumnSquares& op, const View&) {
  const Matrices& shape = op.shape;
  with_master_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t k = 0; k < shape.count; ++k) {
      const T* const x = op.x.as<T>() + k * shape.rows * shape.columns;
      for (std::int64_t j = 0; j < shape.columns; ++j) {
        double sum = 0, of_chunk = 0;
        for (std::int64_t i = 0; i < shape.rows; ++i) {
          const auto value = static_cast<double>(x[i * shape.columns + j]);
          of_chunk += value * value;
          if ((i + 1) % ColumnSquares::kChunk != 0 && i + 1 < shape.rows) continue;
          sum += of_chunk;
          of_chunk = 0;
        }
        op.out.as<double>()[k * shape.columns + j] = sum;
      }
    }
  });
}

/// The sum of x[0] to x[n - 1] in the order of RowTotals.
template <class T>
double total(const T* x, std::int64_t n) {
  std::array<double, RowTotals::kLanes> lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    lanes[static_cast<std::size_t>(i % RowTotals::kLanes)] += static_cast<double>(x[i]);
  }
  for (std::size_t step = lanes.size() / 2; step > 0; step /= 2) {
    for (std::size_t l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  }
  return lanes[0];
}

void row_totals(const KernelCtx&, const RowTotals& op, const View&) {
  if (op.out.numel() == 0) return;
  const std::int64_t each = op.x.numel() / op.out.numel();
  with_master_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t k = 0; k < op.out.numel(); ++k) {
      op.out.as<double>()[k] = total(op.x.as<T>() + k * each, each);
    }
  });
}

void master_squares(const KernelCtx&, const MasterSquares& op, const View&) {
  with_master_type(op.to, [&]<class T>() {
    const Masters<T> masters(op.to, 0);
    std::vector<T> values(static_cast<std::size_t>(op.each()));
    for (std::int64_t k = 0; k < op.out.numel(); ++k) {
      for (std::int64_t i = 0; i < op.each(); ++i) {
        values[static_cast<std::size_t>(i)] = masters.get(k * op.each() + i);
      }
      op.out.as<double>()[k] = sum_of_squares(values.data(), op.each());
    }
  });
}

void factored_scale(const KernelCtx&, const FactoredScale& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.x.dtype, [&]<class T>() {
    const T scale = op.is_gradient ? static_cast<T>(decision.grad_scale) : T{1};
    for_elements(op.shape, [&](std::int64_t k, std::int64_t i, std::int64_t j, std::int64_t e) {
      T row = 1;
      if (op.rows.defined()) {
        const auto mean = static_cast<T>(op.mean(op.totals.as<double>()[k]));
        row = FactoredScale::row_factor(op.rows.as<T>()[k * op.shape.rows + i], mean);
      }
      const T column = FactoredScale::column_factor(op.columns.as<T>()[k * op.shape.columns + j]);
      op.y.as<T>()[e] = op.x.as<T>()[e] * scale * row * column;
    });
  });
}

void matrix_step_update(const KernelCtx&, const MatrixStepUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.to, [&]<class T>() {
    const auto update = static_cast<std::uint64_t>(decision.updates);
    const Masters<T> masters(op.to, update);
    for (std::int64_t k = 0; k < op.matrices; ++k) {
      const MatrixStepScalars<T> s(op, decision, op.factor_of(k));
      for (std::int64_t e = k * op.each(); e < (k + 1) * op.each(); ++e) {
        const T p = masters.get(e), u = op.u.as<T>()[e];
        masters.put(e, op.m.defined() ? s.apply(p, u, op.m.as<T>()[e]) : s.apply(p, u));
      }
    }
  });
}

void came_moment(const KernelCtx&, const CameMoment& op, const View&) {
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  const std::int64_t each = op.u.numel() / op.matrices;
  with_master_type(op.u.dtype, [&]<class T>() {
    const auto beta1 = static_cast<T>(op.beta1), one_minus = static_cast<T>(1 - op.beta1);
    for (std::int64_t e = 0; e < op.u.numel(); ++e) {
      T& u = op.u.as<T>()[e];
      u = CameMoment::residual(u, static_cast<T>(op.clip.divisor_of(e / each)), beta1, one_minus,
                               op.m.as<T>()[e]);
    }
  });
}

/// An element's bound with its gradient in it.
template <class T, class K>
T covered_at(const K& op, T scale, std::int64_t k, std::int64_t i, std::int64_t j, std::int64_t e) {
  const T column = op.columns.template as<T>()[k * op.shape.columns + j];
  const T row = op.rows.defined() ? op.rows.template as<T>()[k * op.shape.rows + i] : column;
  return covered(row, column, op.g.template as<T>()[e] * scale);
}

void cover_maxima(const KernelCtx&, const CoverMaxima& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  with_master_type(op.g.dtype, [&]<class T>() {
    const bool applies = decision.applies();
    // Bounds never shrink below 0, which a bound is at least.
    const auto begin = [&](const View& from, const View& to) {
      for (std::int64_t i = 0; i < to.numel(); ++i) to.as<T>()[i] = applies ? 0 : from.as<T>()[i];
    };
    begin(op.columns, op.new_columns);
    if (op.rows.defined()) begin(op.rows, op.new_rows);
    if (!applies) return;
    const auto scale = static_cast<T>(decision.grad_scale);
    for_elements(op.shape, [&](std::int64_t k, std::int64_t i, std::int64_t j, std::int64_t e) {
      const T bound = covered_at(op, scale, k, i, j, e);
      T& column = op.new_columns.as<T>()[k * op.shape.columns + j];
      column = std::max(column, bound);
      if (!op.rows.defined()) return;
      T& row = op.new_rows.as<T>()[k * op.shape.rows + i];
      row = std::max(row, bound);
    });
  });
}

void cover_scale(const KernelCtx&, const CoverScale& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.g.dtype, [&]<class T>() {
    const auto scale = static_cast<T>(decision.grad_scale), eps = static_cast<T>(op.eps);
    for_elements(op.shape, [&](std::int64_t k, std::int64_t i, std::int64_t j, std::int64_t e) {
      const T bound = covered_at(op, scale, k, i, j, e);
      op.u.as<T>()[e] = op.g.as<T>()[e] * scale * (T{1} / std::sqrt(bound + eps));
    });
  });
}

}  // namespace

void add_factored_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ColumnSquares, column_squares>());
  rows.push_back(row_of<RowTotals, row_totals>());
  rows.push_back(row_of<MasterSquares, master_squares>());
  rows.push_back(row_of<FactoredScale, factored_scale>());
  rows.push_back(row_of<MatrixStepUpdate, matrix_step_update>());
  rows.push_back(row_of<CameMoment, came_moment>());
  rows.push_back(row_of<CoverMaxima, cover_maxima>());
  rows.push_back(row_of<CoverScale, cover_scale>());
}

}  // namespace llmtrain::kernels::reference
