#include "kernels/experts.hpp"
#include "kernels/matmul.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// A layer of experts, how many rows each has, and how many nobody has.
struct Layer {
  std::int64_t out, in;
  std::vector<std::int32_t> counts;
  std::int64_t nobodys = 0;
  /// Between rows, where they may lie apart: 0, or odd, or such that chunks of 16 bytes stay whole.
  std::int64_t gap = 0;

  std::int64_t experts() const { return std::ssize(counts); }
  std::vector<std::int32_t> offsets() const {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
    return offsets;
  }
  std::int64_t rows() const { return offsets().back() + nobodys; }
};

struct Operation {
  Tensor a, b, c, offsets;

  Operation(Machine& m, const Layer& l, GroupedProduct product, bool accumulate = false) {
    const Shape weights{l.experts(), l.out, l.in};
    const std::int64_t n = l.rows();
    offsets = m.integers(l.offsets());
    a = m.operand("a", {n, product == GroupedProduct::forward ? l.in : l.out}, l.gap);
    switch (product) {
      case GroupedProduct::forward:
        b = m.operand("b", weights);
        c = m.output({n, l.out}, 2 * l.gap);
        break;
      case GroupedProduct::input_grad:
        b = m.operand("b", weights);
        c = accumulate ? m.operand("c", {n, l.in}, l.gap) : m.output({n, l.in}, l.gap);
        break;
      case GroupedProduct::weight_grad:
        b = m.operand("b", {n, l.in}, 2 * l.gap);
        c = m.wide_operand("c", weights);
        break;
    }
    m.run(GroupedMatmul{
        .a = a, .b = b, .c = c, .offsets = offsets, .product = product, .accumulate = accumulate});
  }
};

/// All products of a layer against the reference.
void compare_here(const Layer& layer, DType dtype, bool tf32 = false) {
  CAPTURE(layer.out);
  CAPTURE(layer.in);
  CAPTURE(layer.rows());
  CAPTURE(layer.gap);
  compare(
      [&](Machine& m) {
        m.ctx().tf32 = tf32;
        const Operation y(m, layer, GroupedProduct::forward);
        const Operation dx(m, layer, GroupedProduct::input_grad);
        const Operation added(m, layer, GroupedProduct::input_grad, true);
        const Operation dw(m, layer, GroupedProduct::weight_grad);
        return outputs(m, y.c, dx.c, added.c, dw.c);
      },
      dtype,
      // Operands rounded to 11 bits: as those of fp16.
      tf32 ? Limits{.floor = 0x1p13 * 4} : Limits{.times_reference = 3, .floor = 4});
}

}  // namespace

TEST_CASE("products of experts agree with the reference, whoever has how many rows") {
  for (const DType dtype : kTypes) {
    compare_here({1, 1, {1}}, dtype);
    compare_here({5, 7, {0, 3, 0, 1}, 2, 3}, dtype);
    compare_here({24, 40, {2, 0, 17, 64, 1}, 5}, dtype);
    compare_here({33, 31, {9, 70}, 0, 5}, dtype);
    // Nobody has a row, all rows are nobody's, there are none.
    compare_here({8, 16, {0, 0, 0}, 9}, dtype);
    compare_here({8, 16, {0, 0}}, dtype);
    compare_here({0, 16, {2, 1}}, dtype);
    compare_here({8, 0, {2, 1}, 1}, dtype);
  }
}

TEST_CASE("products of experts of several tiles, and of more experts than a warp has lanes") {
  for (const DType dtype : kTypes) {
    compare_here({200, 72, {130, 0, 256, 5}, 140}, dtype);
    compare_here({16, 150, {300}, 0, 8}, dtype);
    std::vector<std::int32_t> counts(70, 1);
    counts[33] = counts[64] = 0;
    counts[65] = 3;
    compare_here({8, 8, counts, 1}, dtype);
  }
}

TEST_CASE("slices of products of experts follow one another, whole or not") {
  // Terms of more slices than there are places for; the last one with one term, and full.
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t terms : {32, 129, 200, 256, 264}) {
      compare_here({16, terms, {3, 20}}, dtype);
      compare_here({terms, 16, {3, 20}}, dtype);
      compare_here({16, 8, {1, static_cast<std::int32_t>(terms)}}, dtype);
    }
  }
}

TEST_CASE("TF32 rounds operands of experts' fp32 products, and of no others") {
  const Layer layers[] = {{24, 40, {2, 0, 17, 64, 1}, 5},
                          {33, 31, {9, 70}, 0, 5},
                          {136, 100, {129, 3}},
                          {16, 68, {3, 0, 40}, 2, 4}};
  for (const Layer& layer : layers) compare_here(layer, DType::f32, true);
  for (const GroupedProduct product :
       {GroupedProduct::forward, GroupedProduct::input_grad, GroupedProduct::weight_grad}) {
    const auto values = [&](DType dtype, bool tf32) {
      Machine m(Place::gpu, dtype, dtype);
      m.ctx().tf32 = tf32;
      return m.read(Operation(m, layers[0], product).c);
    };
    CHECK(values(DType::bf16, true) == values(DType::bf16, false));
    CHECK(values(DType::f64, true) == values(DType::f64, false));
    const Values plain = values(DType::f32, false);
    const double error = max_difference(plain, values(DType::f32, true)) / max_magnitude(plain);
    CHECK(error > 0x1p-15);  // as of fp32: 2^-22
    CHECK(error < 0x1p-10);  // as of bf16: 2^-8
  }
}

TEST_CASE("in fp64 and fp32 experts have the bits of products of their rows alone") {
  const Layer layer{34, 50, {30, 0, 61}, 0, 0};
  for (const DType dtype : {DType::f64, DType::f32}) {
    Machine m(Place::gpu, dtype, dtype);
    m.ctx().determinism = Determinism::layout;  // in which products are our own, too
    const Operation all(m, layer, GroupedProduct::forward);
    const Tensor expected = m.zeros({layer.rows(), layer.out}, dtype);
    const auto offsets = layer.offsets();
    for (std::int64_t e = 0; e < layer.experts(); ++e) {
      const std::int64_t begin = offsets[static_cast<std::size_t>(e)];
      const std::int64_t count = layer.counts[static_cast<std::size_t>(e)];
      m.run(Matmul{.a = all.a.row_range(begin, count),
                   .b = all.b.row_range(e * layer.out, layer.out),
                   .c = expected.row_range(begin, count),
                   .bias = {},
                   .transpose_b = true});
    }
    CHECK(m.read(all.c) == m.read(expected));
  }
}

TEST_CASE("a row of experts that is NaN leaves all others alone, and gaps stay as they are") {
  for (const DType dtype : kTypes) {
    for (const std::int64_t cols : {16, 18}) {
      Machine m(Place::gpu, dtype, dtype);
      Values x(static_cast<std::size_t>(5 * cols), 1.0);
      x[static_cast<std::size_t>(2 * cols)] = NAN;
      const Tensor a = m.of(x, {5, cols}, dtype);
      const Tensor b = m.operand("b", {2, 6, cols});
      const Tensor offsets = m.integers(std::vector<std::int32_t>{0, 3, 4});
      const Tensor whole = m.empty({6, 12}, dtype);  // with a row behind the last
      m.run(GroupedMatmul{
          .a = a, .b = b, .c = whole.row_range(0, 5).columns(3, 6), .offsets = offsets});
      const Values values = m.read(whole);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool inside = i < 60 && i % 12 >= 3 && i % 12 < 9;
        CHECK(std::isnan(values[i]) == (!inside || i / 12 == 2));
      }
    }
  }
}

TEST_CASE("rows that no expert has count in no product, whatever they are") {
  for (const DType dtype : kTypes) {
    Machine m(Place::gpu, dtype, dtype);
    const auto rows = [&](std::int64_t cols) {
      Values values(static_cast<std::size_t>(4 * cols), 0.5);
      for (std::int64_t i = 3 * cols; i < 4 * cols; ++i) values[static_cast<std::size_t>(i)] = NAN;
      return m.of(values, {4, cols}, dtype);
    };
    const Tensor x = rows(8), dy = rows(16), w = m.operand("w", {2, 16, 8});
    const Tensor offsets = m.integers(std::vector<std::int32_t>{0, 1, 3});
    const Tensor dw = m.zeros({2, 16, 8}, m.wide()), kept = m.of(Values(32, 7.0), {4, 8}, dtype);
    GroupedMatmul product{
        .a = dy, .b = x, .c = dw, .offsets = offsets, .product = GroupedProduct::weight_grad};
    m.run(product);
    product = {.a = dy,
               .b = w,
               .c = kept,
               .offsets = offsets,
               .product = GroupedProduct::input_grad,
               .accumulate = true};
    m.run(product);
    for (const double value : m.read(dw)) CHECK((value == 0.25 || value == 0.5));
    const Values sums = m.read(kept);
    for (std::size_t i = 24; i < 32; ++i) CHECK(sums[i] == 7);
  }
}
