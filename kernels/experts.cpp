#include "kernels/experts.hpp"

#include <algorithm>

#include "kernels/matmul.hpp"
#include "kernels/matmul_workspace.hpp"
#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void GroupByExpert::check() const {
  const Operands operands(name);
  const std::int64_t n = expert.numel();
  operands.expects(offsets.numel() > 1, "at least one expert");
  operands.dense("expert", expert, n, {DType::i32});
  operands.dense("offsets", offsets, offsets.numel(), {DType::i32});
  operands.dense("source", source, n, {DType::i32});
  operands.dense("place", place, n, {DType::i32});
}

Cost GroupByExpert::cost() const { return memory_cost({expert, expert}, {offsets, source, place}); }

void GatherRows::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), kComputeDTypes);
  operands.dense("source", source, source.numel(), {DType::i32});
  operands.expects(x.rows() > 0 ? source.numel() % x.rows() == 0 : source.numel() == 0,
                   "equally many choices of each row");
  operands.dense("offsets", offsets, offsets.numel(), {DType::i32});
  operands.dense("y", y, source.numel() * x.cols(), {x.dtype});
  operands.expects(y.cols() == x.cols(), "y to be as wide as x");
  operands.distinct("y", y, "x", x);
}

Cost GatherRows::cost() const {
  Cost cost = memory_cost({source}, {y});
  cost.bytes_read += static_cast<double>(y.bytes());
  return cost;
}

void CombineRows::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), kComputeDTypes);
  operands.dense("place", place, x.rows(), {DType::i32});
  operands.expects(y.rows() > 0 ? place.numel() % y.rows() == 0 : place.numel() == 0,
                   "equally many choices of each row");
  operands.dense("y", y, y.numel(), {x.dtype});
  operands.expects(y.cols() == x.cols(), "y to be as wide as x");
  operands.distinct("y", y, "x", x);
}

Cost CombineRows::cost() const { return memory_cost({x, place}, {y}); }

void GroupedMatmul::check() const {
  const Operands operands(name);
  const bool of_weight = product == GroupedProduct::weight_grad;
  const std::int64_t weights = experts() * out() * in();
  operands.expects(offsets.numel() > 1, "at least one expert");
  operands.dense("offsets", offsets, offsets.numel(), {DType::i32});
  operands.expects(!accumulate || product == GroupedProduct::input_grad,
                   "accumulate with input_grad alone");
  operands.strided("a", a, rows(), product == GroupedProduct::forward ? in() : out(),
                   kComputeDTypes);
  if (of_weight) {
    operands.strided("b", b, rows(), in(), {a.dtype});
    operands.dense("c", c, weights, {sum_dtype(a.dtype)});
  } else {
    operands.dense("b", b, weights, {a.dtype});
    operands.strided("c", c, rows(), product == GroupedProduct::forward ? out() : in(), {a.dtype});
  }
  operands.distinct("c", c, "a", a);
  operands.distinct("c", c, "b", b);
}

Cost GroupedMatmul::cost() const {
  const bool adds = accumulate || product == GroupedProduct::weight_grad;
  Cost cost = memory_cost({a, b, adds ? c : View{}}, {c});
  cost.flops = 2.0 * static_cast<double>(expected_rows.value_or(rows())) *
               static_cast<double>(out()) * static_cast<double>(in());
  return cost;
}

std::array<std::int64_t, 4> GroupedMatmul::sizes() const {
  const std::int64_t mean = std::max<std::int64_t>(1, expected_rows.value_or(rows()) / experts());
  switch (product) {
    case GroupedProduct::forward:
      return {mean, out(), in(), 0};
    case GroupedProduct::input_grad:
      return {mean, in(), out(), 1};
    case GroupedProduct::weight_grad:
      return {out(), in(), mean, 2};
  }
  return {};
}

Matmul GroupedMatmul::of_expert(std::int64_t e, std::int64_t begin, std::int64_t end) const {
  const auto rows_of = [&](const View& view) {
    View part = view;
    part.data = view.as<std::byte>() +
                static_cast<std::uint64_t>(begin * view.row_stride) * size_of(view.dtype);
    part.shape = {end - begin, view.cols()};
    return part;
  };
  const auto weight_of = [&](const View& view) {
    const auto first = static_cast<std::uint64_t>(e * out() * in());
    return View{
        view.as<std::byte>() + first * size_of(view.dtype), view.dtype, {out(), in()}, in()};
  };
  if (product == GroupedProduct::weight_grad) {
    return {.a = rows_of(a),
            .b = rows_of(b),
            .c = weight_of(c),
            .bias = {},
            .transpose_a = true,
            .accumulate = true};
  }
  return {.a = rows_of(a),
          .b = weight_of(b),
          .c = rows_of(c),
          .bias = {},
          .transpose_b = product == GroupedProduct::forward,
          .accumulate = accumulate};
}

std::uint64_t GroupedMatmul::workspace_bytes(int threads) const {
  // More rows may take less: from some number on, they are not packed at once.
  return matmul_workspace_bound(of_expert(0, 0, rows()), threads);
}

}  // namespace llmtrain::kernels
