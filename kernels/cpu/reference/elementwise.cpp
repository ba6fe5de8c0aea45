#include "kernels/elementwise.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/activations.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels::reference {

namespace {

void add(const KernelCtx&, const Add& op, const View&) {
  with_type(op.a.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.a.rows(); ++i) {
      for (std::int64_t j = 0; j < op.a.cols(); ++j) {
        op.y.row<T>(i)[j] = narrow<T>(widen(op.a.row<T>(i)[j]) + widen(op.b.row<T>(i)[j]));
      }
    }
  });
}

template <class X, class Y>
void scale_cast_as(const ScaleCast& op) {
  using W = std::common_type_t<Wide<X>, Wide<Y>>;
  const W scale = static_cast<W>(op.scale);
  for (std::int64_t i = 0; i < op.x.rows(); ++i) {
    const X* x = op.x.row<X>(i);
    Y* y = op.y.row<Y>(i);
    for (std::int64_t j = 0; j < op.x.cols(); ++j) {
      const W value = scale * static_cast<W>(widen(x[j]));
      y[j] = narrow<Y>(op.accumulate ? static_cast<W>(widen(y[j])) + value : value);
    }
  }
}

void scale_cast(const KernelCtx&, const ScaleCast& op, const View&) {
  with_type(op.x.dtype,
            [&]<class X>() { with_type(op.y.dtype, [&]<class Y>() { scale_cast_as<X, Y>(op); }); });
}

void normalize(const KernelCtx& ctx, const Normalize& op, const View& workspace) {
  scale_cast(ctx, op.as_scale_cast(*op.squared_norm.as<double>()), workspace);
}

void scale_update(const KernelCtx& ctx, const ScaleUpdate& op, const View& workspace) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (decision.applies()) scale_cast(ctx, op.as_scale_cast(decision), workspace);
}

void fill(const KernelCtx&, const Fill& op, const View&) {
  if (op.y.dtype == DType::u8) {
    std::fill_n(op.y.as<std::uint8_t>(), op.y.numel(), static_cast<std::uint8_t>(op.value));
    return;
  }
  with_type(op.y.dtype,
            [&]<class T>() { std::fill_n(op.y.as<T>(), op.y.numel(), narrow<T>(op.value)); });
}

template <class X>
X select(bool condition, X yes, X no) {
  return condition ? yes : no;
}

template <class X>
struct ValueAndSlope {
  X value, slope;
};

template <class X>
ValueAndSlope<X> evaluate(Activation activation, X x) {
  using std::erf, std::exp, std::tanh;
  X y = 0;
  X slope = 0;
  switch (activation) {
#define ACTIVATION(id, names, ...) \
  case Activation::id: {           \
    __VA_ARGS__                    \
    break;                         \
  }
#include "kernels/activation_table.inc"
#undef ACTIVATION
  }
  return {y, slope};
}

void activation_forward(const KernelCtx&, const ActivationForward& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        Wide<T> y = evaluate(op.activation, widen(op.x.row<T>(i)[j])).value;
        if (op.up.defined()) y *= widen(op.up.row<T>(i)[j]);
        op.y.row<T>(i)[j] = narrow<T>(y);
      }
    }
  });
}

void activation_backward(const KernelCtx&, const ActivationBackward& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      for (std::int64_t j = 0; j < op.x.cols(); ++j) {
        const auto f = evaluate(op.activation, widen(op.x.row<T>(i)[j]));
        const Wide<T> dy = widen(op.dy.row<T>(i)[j]);
        Wide<T> dx = dy * f.slope;
        if (op.up.defined()) {
          dx *= widen(op.up.row<T>(i)[j]);
          op.dup.row<T>(i)[j] = narrow<T>(dy * f.value);
        }
        op.dx.row<T>(i)[j] = narrow<T>(dx);
      }
    }
  });
}

void dropout(const KernelCtx&, const Dropout& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    const auto scale = static_cast<Wide<T>>(1 / (1 - op.p));
    const std::uint64_t step = op.step_now();
    const std::int64_t cols = op.x.cols();
    for (std::int64_t i = 0; i < op.x.rows(); ++i) {
      const std::int64_t first = op.row_id.as<std::int64_t>()[i] * cols;
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::uint32_t word = philox_word(op.key, step, static_cast<std::uint64_t>(first + j));
        const bool keep = unit_interval(word) >= op.p;
        op.y.row<T>(i)[j] = keep ? narrow<T>(widen(op.x.row<T>(i)[j]) * scale) : T{};
      }
    }
  });
}

}  // namespace

void add_elementwise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Add, add>());
  rows.push_back(row_of<ScaleCast, scale_cast>());
  rows.push_back(row_of<Normalize, normalize>());
  rows.push_back(row_of<ScaleUpdate, scale_update>());
  rows.push_back(row_of<Fill, fill>());
  rows.push_back(row_of<ActivationForward, activation_forward>());
  rows.push_back(row_of<ActivationBackward, activation_backward>());
  rows.push_back(row_of<Dropout, dropout>());
}

}  // namespace llmtrain::kernels::reference
