// Problems as large as those of real steps: more blocks than a GPU has room for, sums of thousands
// of terms. An emulated GPU, for which they would take hours, has smaller ones of the same form.
#include "kernels/loss.hpp"
#include "tests/cuda/attention_case.hpp"
#include "tests/cuda/matmul_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

/// `size` on a GPU.
std::int64_t sized(std::int64_t size) { return fake_library() == nullptr ? size : size / 16; }

/// A product of which the reference computes some rows, spread over all of c.
struct LargeProduct {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  bool accumulate = false;  // in FP32, as gradients of weights are

  static constexpr std::int64_t kChecked = 6;
  std::int64_t row(std::int64_t i) const { return i * (m - 1) / (kChecked - 1); }
};

/// Those rows of c, of a product of all rows or of these alone.
Values checked_rows(const LargeProduct& p, Place place, DType compute, DType dtype) {
  const bool whole = place == Place::gpu;
  const std::int64_t m = whole ? p.m : LargeProduct::kChecked;
  // Whole operands are drawn; the reference has the rows of a and c that it needs.
  const auto rows_of = [&](const Values& all, std::int64_t rows, std::int64_t cols, bool columns) {
    if (whole) return all;
    Values some(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::int64_t from = columns ? i * p.m + p.row(j) : p.row(i) * cols + j;
        some[static_cast<std::size_t>(i * cols + j)] = all[static_cast<std::size_t>(from)];
      }
    }
    return some;
  };
  const auto drawn = [&](std::string_view name, std::int64_t rows, std::int64_t cols) {
    Machine host(Place::reference, DType::f32, dtype);
    return host.read(host.operand(name, {rows, cols}));
  };
  Machine machine(place, compute, dtype);
  const Shape a_shape = p.transpose_a ? Shape{p.k, m} : Shape{m, p.k};
  const Values all_a = p.transpose_a ? drawn("a", p.k, p.m) : drawn("a", p.m, p.k);
  const Tensor a =
      machine.of(rows_of(all_a, a_shape.rows(), a_shape.cols(), p.transpose_a), a_shape, compute);
  const Tensor b = machine.operand("b", p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
  const DType result = p.accumulate ? machine.wide() : compute;
  const Tensor c = p.accumulate
                       ? machine.of(rows_of(drawn("c", p.m, p.n), m, p.n, false), {m, p.n}, result)
                       : machine.empty({m, p.n}, result);
  machine.run(Matmul{.a = a,
                     .b = b,
                     .c = c,
                     .bias = {},
                     .transpose_a = p.transpose_a,
                     .transpose_b = p.transpose_b,
                     .accumulate = p.accumulate});
  Values rows;
  for (std::int64_t i = 0; i < LargeProduct::kChecked; ++i) {
    const Values one = machine.read(c.row_range(whole ? p.row(i) : i, 1));
    rows.insert(rows.end(), one.begin(), one.end());
  }
  return rows;
}

}  // namespace

TEST_CASE("products of a step's size have the reference's rows") {
  const std::int64_t tokens = sized(4096), wide = sized(2048), narrow = sized(1024);
  const LargeProduct products[] = {{tokens, wide, narrow, false, true},
                                   {tokens, narrow, wide, false, false},
                                   {wide, narrow, tokens, true, false, true},
                                   {tokens - 5, narrow + 3, wide - 1, false, true}};
  for (const LargeProduct& p : products) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(p.m);
      CAPTURE(p.n);
      CAPTURE(to_string(dtype));
      const Values exact = checked_rows(p, Place::reference, DType::f64, dtype);
      const Values plain = checked_rows(p, Place::reference, dtype, dtype);
      const Values found = checked_rows(p, Place::gpu, dtype, dtype);
      // Tensor cores cut off what sums of bf16 and fp16 have beyond FP32, once for 16 terms.
      const double cuts = dtype == DType::f32 ? 0 : static_cast<double>(p.k) / 16;
      const double rounding = 4 * test::rounding_of(p.accumulate ? DType::f32 : dtype) +
                              cuts * test::rounding_of(DType::f32);
      CHECK(max_difference(found, exact) <=
            std::max(3 * max_difference(plain, exact), rounding * max_magnitude(exact)));
    }
  }
}

TEST_CASE("attention to a thousand keys has the reference's values") {
  const auto rows = [](std::int64_t n) { return fake_library() == nullptr ? n : n / 4; };
  const AttentionCase cases[] = {
      {.name = "128", .tq = rows(1100), .tk = rows(1100), .head_dim = 128, .fused = true},
      {.name = "64, documents, odd",
       .tq = rows(1000) + 1,
       .tk = rows(1000) + 1,
       .head_dim = 64,
       .documents = {0, 40, 150}},
      {.name = "96, window", .tq = rows(1024), .tk = rows(1024), .head_dim = 96, .window = 100}};
  for (const AttentionCase& c : cases) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      compare_attention(c, dtype, {.times_reference = 3, .floor = 3},
                        {.times_reference = 3, .floor = 4});
    }
  }
}

TEST_CASE("cross-entropy over a large vocabulary") {
  const std::int64_t rows = sized(64), classes = 151'936;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare(
        [&](Machine& m) {
          const Tensor logits = m.normals("z", {rows, classes}, m.wide(), DType::f32);
          std::vector<std::int32_t> ids;
          for (std::int64_t i = 0; i < rows; ++i) {
            ids.push_back(static_cast<std::int32_t>(i * 7919 % classes));
          }
          const Tensor target = m.integers(ids), loss = m.empty({rows}, m.wide());
          const Tensor dlogits = m.output({rows, classes});
          m.run(CrossEntropy{.logits = logits,
                             .target = target,
                             .loss = loss,
                             .dlogits = dlogits,
                             .num_classes = classes,
                             .grad_scale = 0.37});
          return outputs(m, loss, dlogits);
        },
        dtype, {.floor = 4});
  }
}
