#include "kernels/scale_rows.hpp"

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void scale_rows(const KernelCtx&, const ScaleRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    const auto* weight = op.weight.as<Wide<T>>();
    for (std::int64_t p = 0; p < op.x.rows(); ++p) {
      const Wide<T> w = weight[p];
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        op.y.row<T>(p)[j] = narrow<T>(w * widen(op.x.row<T>(p)[j]));
      }
    }
  });
}

void scale_rows_backward(const KernelCtx&, const ScaleRowsBackward& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    const auto* weight = op.weight.as<Wide<T>>();
    for (std::int64_t p = 0; p < op.x.rows(); ++p) {
      Wide<T> sum = 0;
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        const Wide<T> dy = widen(op.dy.row<T>(p)[j]);
        sum += dy * widen(op.x.row<T>(p)[j]);
        op.dx.row<T>(p)[j] = narrow<T>(weight[p] * dy);
      }
      op.dweight.as<Wide<T>>()[p] = sum;
    }
  });
}

}  // namespace

void add_scale_rows_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ScaleRows, scale_rows>());
  rows.push_back(row_of<ScaleRowsBackward, scale_rows_backward>());
}

}  // namespace llmtrain::kernels::reference
