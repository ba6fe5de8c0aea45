#include <doctest/doctest.h>

#include "kernels/attention.hpp"
#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

namespace {

struct RopeCase {
  std::int64_t rows = 5, heads = 2, head_dim = 8, rotary_dim = 8;
  bool inverse = false;
  bool in_place = false;
  std::int32_t first_position = 0;
};

constexpr std::int64_t kPositions = 64;

/// x and y are columns of wider buffers.
std::vector<double> run_rope(const RopeCase& c, const std::vector<double>& values, DType dtype,
                             const KernelTable& table, int threads = 2) {
  Machine machine(table, threads);
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t half = c.rotary_dim / 2;
  std::vector<double> cosine, sine;
  for (std::int64_t p = 0; p < kPositions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / half);
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
  }
  std::vector<std::int32_t> position;
  for (std::int64_t i = 0; i < c.rows; ++i) {
    position.push_back(c.first_position + static_cast<std::int32_t>(i));
  }
  const std::int64_t cols = c.heads * c.head_dim;
  const Tensor x = machine.allocate({c.rows, cols + 3}, dtype).columns(1, cols);
  const Tensor y = c.in_place ? x : machine.allocate({c.rows, cols + 5}, dtype).columns(2, cols);
  write_rows(x, values);
  launch(machine.ctx(), Rope{.x = x,
                             .y = y,
                             .cosine = machine.of({kPositions, half}, wide, cosine),
                             .sine = machine.of({kPositions, half}, wide, sine),
                             .position = machine.ints(position),
                             .head_dim = c.head_dim,
                             .rotary_dim = c.rotary_dim,
                             .inverse = c.inverse});
  return read_rows(y);
}

}  // namespace

TEST_CASE("RoPE turns the pair (x[i], x[i + half]) by position times frequency") {
  const RopeCase c{.rows = 3, .heads = 1, .head_dim = 2, .rotary_dim = 2};
  const std::vector<double> y = run_rope(c, {1, 0, 1, 0, 0, 1}, DType::f64, cpu_reference_table());
  CHECK(max_abs_difference(y, {1, 0, std::cos(1.0), std::sin(1.0), -std::sin(2.0), std::cos(2.0)}) <
        1e-15);
}

TEST_CASE("scores after RoPE depend on the distance of positions only") {
  RopeCase c{.rows = 2, .heads = 1};
  const std::vector<double> x = normals("x", 16);
  std::vector<double> scores;
  for (const std::int32_t first : {0, 7, 40}) {
    c.first_position = first;
    const std::vector<double> y = run_rope(c, x, DType::f64, cpu_reference_table());
    double score = 0;
    for (std::size_t d = 0; d < 8; ++d) score += y[d] * y[8 + d];
    scores.push_back(score);
  }
  CHECK(scores[1] == test::relative(scores[0], 1e-12));
  CHECK(scores[2] == test::relative(scores[0], 1e-12));
}

TEST_CASE("inverse RoPE turns back, and leaves what does not turn") {
  const RopeCase there{.rows = 7, .heads = 3, .head_dim = 10, .rotary_dim = 6};
  RopeCase back = there;
  back.inverse = true;
  const std::vector<double> x = normals("x", 7 * 30);
  const std::vector<double> y = run_rope(there, x, DType::f64, cpu_reference_table());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 10 >= 6) CHECK(y[i] == x[i]);
  }
  CHECK(max_abs_difference(y, x) > 0.1);
  CHECK(max_abs_difference(run_rope(back, y, DType::f64, cpu_reference_table()), x) < 1e-14);
}

TEST_CASE("fast RoPE has the bits of the plain kernel, in place or not, for any threads") {
  for (const std::int64_t head_dim : {2, 6, 40, 64, 128}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const bool in_place : {false, true}) {
        RopeCase c{.rows = 37, .head_dim = head_dim, .rotary_dim = head_dim, .in_place = in_place};
        if (head_dim == 40) c.rotary_dim = 22;
        c.inverse = head_dim == 6;
        const std::vector<double> x = rounded(normals("x", 37 * 2 * head_dim), dtype);
        const std::vector<double> plain = run_rope(c, x, dtype, cpu_reference_table());
        const std::vector<double> exact = run_rope(c, x, DType::f64, cpu_reference_table());
        CHECK(max_abs_difference(plain, exact) < (dtype == DType::f32 ? 1e-6 : 2e-2));
        for (const int threads : {1, 2, 7}) {
          CHECK(same_bits(run_rope(c, x, dtype, cpu_table(), threads), plain));
        }
      }
    }
  }
}

TEST_CASE("RoPE refuses positions without a row in its tables") {
  const RopeCase c{.rows = 2, .first_position = kPositions - 1};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    CHECK_THROWS_WITH_AS(run_rope(c, normals("x", 32), DType::f32, *table),
                         doctest::Contains("row 1 has position 64"), InternalError);
  }
}

TEST_CASE("RoPE checks its operands") {
  Machine machine(cpu_table());
  const Tensor x = machine.allocate({2, 16}, DType::bf16);
  const Tensor table = machine.allocate({9, 4}, DType::f32);
  const Rope good{.x = x,
                  .y = x,
                  .cosine = table,
                  .sine = table,
                  .position = machine.ints({1, 2}),
                  .head_dim = 8,
                  .rotary_dim = 8};
  good.check();
  const auto refused = [&](auto&& change) {
    Rope bad = good;
    change(bad);
    CHECK_THROWS_AS(bad.check(), InternalError);
  };
  refused([](Rope& op) { op.head_dim = 5; });
  refused([](Rope& op) { op.rotary_dim = 7; });
  refused([](Rope& op) { op.rotary_dim = 10; });
  refused([](Rope& op) { op.rotary_dim = 6; });
  refused([](Rope& op) { op.y.dtype = DType::f32; });
  refused([](Rope& op) { op.cosine.dtype = DType::f64; });
  refused([](Rope& op) { op.sine.shape = {8, 4}; });
  refused([](Rope& op) { op.position.shape = {1}; });
  refused([](Rope& op) {
    op.y.row_stride = 32;
    op.x.row_stride = 16;
  });
}

}  // namespace llmtrain::kernels
