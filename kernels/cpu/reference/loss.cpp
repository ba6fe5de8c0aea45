#include "kernels/loss.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/embedding_ids.hpp"
#include "kernels/cpu/row_statistics.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void embedding_forward(const KernelCtx&, const EmbeddingForward& op, const View&) {
  check_ids(op.name, op.id, 0, op.part.end(op.table.rows()));
  const std::int64_t hidden = op.table.cols();
  with_type(op.table.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.id.numel(); ++i) {
      const std::int64_t entry = entry_of(op, op.table, i);
      T* y = op.y.as<T>() + i * hidden;
      if (entry < 0) {
        if (!op.accumulate) std::fill_n(y, hidden, T{});
        continue;
      }
      const T* row = op.table.row<T>(entry);
      for (std::int64_t j = 0; j < hidden; ++j) {
        y[j] = op.accumulate ? narrow<T>(widen(y[j]) + widen(row[j])) : row[j];
      }
    }
  });
}

void embedding_backward(const KernelCtx&, const EmbeddingBackward& op, const View&) {
  check_ids(op.name, op.id, 0, op.part.end(op.dtable.rows()));
  const std::int64_t hidden = op.dtable.cols();
  with_type(op.dy.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.id.numel(); ++i) {
      const std::int64_t entry = entry_of(op, op.dtable, i);
      if (entry < 0) continue;
      Wide<T>* row = op.dtable.row<Wide<T>>(entry);
      const T* dy = op.dy.as<T>() + i * hidden;
      for (std::int64_t j = 0; j < hidden; ++j) row[j] += widen(dy[j]);
    }
  });
}

/// A row of logits of type L as the loss reads it.
template <class L, class Z = Wide<L>>
struct Row {
  const L* logits;
  Z cap;
  Z operator[](std::int64_t j) const {
    const Z z = widen(logits[j]);
    return cap > 0 ? cap * std::tanh(z / cap) : z;
  }
};

/// `target` is a column, here or not.
template <class L, class Z = Wide<L>>
RowStatistics<Z> statistics_of(const Row<L>& z, std::int64_t num_classes, std::int64_t target) {
  RowStatistics<Z> row;
  for (std::int64_t j = 0; j < num_classes; ++j) row.max = std::max(row.max, z[j]);
  for (std::int64_t j = 0; j < num_classes; ++j) row.sum += std::exp(z[j] - row.max);
  if (target >= 0 && target < num_classes) row.at_target = z[target];
  return row;
}

/// The column of row i's target, negative or beyond the classes where it is not here.
template <class Op>
std::int64_t target_column(const Op& op, std::int64_t i) {
  const std::int32_t target = op.target.template as<std::int32_t>()[i];
  return target < 0 ? -1 - op.part.first : target - op.part.first;
}

void logit_statistics(const KernelCtx&, const LogitStatistics& op, const View&) {
  check_ids(op.name, op.target, -1, op.part.end(op.num_classes));
  with_type(op.logits.dtype, [&]<class L>() {
    using Z = Wide<L>;
    for (std::int64_t i = 0; i < op.logits.rows(); ++i) {
      const Row<L> z{op.logits.row<L>(i), static_cast<Z>(op.softcap)};
      op.statistics.as<RowStatistics<Z>>()[i] =
          statistics_of(z, op.num_classes, target_column(op, i));
    }
  });
}

/// G is the type of the gradient.
template <class L, class G>
void cross_entropy_row(const CrossEntropy& op, std::int64_t i) {
  using Z = Wide<L>;
  const auto cap = static_cast<Z>(op.softcap);
  const Row<L> z{op.logits.row<L>(i), cap};
  const bool trained = op.target.as<std::int32_t>()[i] >= 0;
  const std::int64_t target = target_column(op, i);
  const RowStatistics<Z> row = op.statistics.defined() ? joined_statistics<Z>(op, i)
                                                       : statistics_of(z, op.num_classes, target);
  const Z lse = row.max + std::log(row.sum);
  op.loss.as<Z>()[i] = trained ? lse - row.at_target : Z{0};
  const auto z_coef = static_cast<Z>(op.z_loss_coef);
  if (op.z_loss.defined()) op.z_loss.as<Z>()[i] = trained ? z_coef * lse * lse : Z{0};
  if (!op.dlogits.defined()) return;
  G* dz = op.dlogits.row<G>(i);
  for (std::int64_t j = 0; j < op.logits.cols(); ++j) {
    Z gradient = 0;
    if (trained && j < op.num_classes) {
      const Z onehot = j == target ? 1 : 0;
      const Z softmax = std::exp(z[j] - lse) * (1 + 2 * z_coef * lse);
      gradient = static_cast<Z>(op.grad_scale_now()) * (softmax - onehot);
      if (cap > 0) gradient *= 1 - (z[j] / cap) * (z[j] / cap);
    }
    dz[j] = narrow<G>(gradient);
  }
}

void cross_entropy(const KernelCtx&, const CrossEntropy& op, const View&) {
  check_ids(op.name, op.target, -1, op.part.end(op.num_classes));
  const DType gradient = op.dlogits.defined() ? op.dlogits.dtype : op.logits.dtype;
  with_type(op.logits.dtype, [&]<class L>() {
    with_type(gradient, [&]<class G>() {
      for (std::int64_t i = 0; i < op.logits.rows(); ++i) cross_entropy_row<L, G>(op, i);
    });
  });
}

void sum(const KernelCtx&, const Sum& op, const View&) {
  const std::int64_t n = op.x.numel();
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += Sum::kBlock) {
    double block = 0;
    for (std::int64_t i = begin; i < std::min(n, begin + Sum::kBlock); ++i) {
      block += op.x.dtype == DType::f64 ? op.x.as<double>()[i] : op.x.as<float>()[i];
    }
    total += block;
  }
  op.out.as<double>()[0] += total;
}

}  // namespace

void add_loss_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EmbeddingForward, embedding_forward>());
  rows.push_back(row_of<EmbeddingBackward, embedding_backward>());
  rows.push_back(row_of<LogitStatistics, logit_statistics>());
  rows.push_back(row_of<CrossEntropy, cross_entropy>());
  rows.push_back(row_of<Sum, sum>());
}

}  // namespace llmtrain::kernels::reference
