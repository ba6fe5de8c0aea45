#include "kernels/loss.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/embedding_ids.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void embedding_forward(const KernelCtx&, const EmbeddingForward& op, const View&) {
  check_ids(op.name, op.id, 0, op.table.rows());
  const std::int64_t hidden = op.table.cols();
  with_type(op.table.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.id.numel(); ++i) {
      const T* row = op.table.row<T>(op.id.as<std::int32_t>()[i]);
      T* y = op.y.as<T>() + i * hidden;
      for (std::int64_t j = 0; j < hidden; ++j) {
        y[j] = op.accumulate ? narrow<T>(widen(y[j]) + widen(row[j])) : row[j];
      }
    }
  });
}

void embedding_backward(const KernelCtx&, const EmbeddingBackward& op, const View&) {
  check_ids(op.name, op.id, 0, op.dtable.rows());
  const std::int64_t hidden = op.dtable.cols();
  with_type(op.dy.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.id.numel(); ++i) {
      Wide<T>* row = op.dtable.row<Wide<T>>(op.id.as<std::int32_t>()[i]);
      const T* dy = op.dy.as<T>() + i * hidden;
      for (std::int64_t j = 0; j < hidden; ++j) row[j] += widen(dy[j]);
    }
  });
}

/// Z is the type of the logits, G that of their gradient.
template <class Z, class G>
void cross_entropy_row(const CrossEntropy& op, std::int64_t i) {
  const Z* logits = op.logits.row<Z>(i);
  const auto cap = static_cast<Z>(op.softcap);
  const auto z = [&](std::int64_t j) {
    return cap > 0 ? cap * std::tanh(logits[j] / cap) : logits[j];
  };
  const std::int32_t target = op.target.as<std::int32_t>()[i];
  Z max = -std::numeric_limits<Z>::infinity();
  for (std::int64_t j = 0; j < op.num_classes; ++j) max = std::max(max, z(j));
  Z sum = 0;
  for (std::int64_t j = 0; j < op.num_classes; ++j) sum += std::exp(z(j) - max);
  const Z lse = max + std::log(sum);
  op.loss.as<Z>()[i] = target < 0 ? Z{0} : lse - z(target);
  if (!op.dlogits.defined()) return;
  G* dz = op.dlogits.row<G>(i);
  for (std::int64_t j = 0; j < op.logits.cols(); ++j) {
    Z gradient = 0;
    if (target >= 0 && j < op.num_classes) {
      const Z onehot = j == target ? 1 : 0;
      gradient = static_cast<Z>(op.grad_scale_now()) * (std::exp(z(j) - lse) - onehot);
      if (cap > 0) gradient *= 1 - (z(j) / cap) * (z(j) / cap);
    }
    dz[j] = narrow<G>(gradient);
  }
}

void cross_entropy(const KernelCtx&, const CrossEntropy& op, const View&) {
  check_ids(op.name, op.target, -1, op.num_classes);
  for (std::int64_t i = 0; i < op.logits.rows(); ++i) {
    if (op.logits.dtype == DType::f64) {
      cross_entropy_row<double, double>(op, i);
    } else if (!op.dlogits.defined() || op.dlogits.dtype == DType::f32) {
      cross_entropy_row<float, float>(op, i);
    } else if (op.dlogits.dtype == DType::bf16) {
      cross_entropy_row<float, bf16>(op, i);
    } else {
      cross_entropy_row<float, f16>(op, i);
    }
  }
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
  rows.push_back(row_of<CrossEntropy, cross_entropy>());
  rows.push_back(row_of<Sum, sum>());
}

}  // namespace llmtrain::kernels::reference
