#include "kernels/loss.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/rounding.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

namespace {

struct LossCase {
  std::int64_t rows = 3, cols = 10, num_classes = 10;
  double grad_scale = 1;
  std::vector<std::int32_t> target;
  double softcap = 0;
  double z_loss_coef = 0;
};

struct LossResult {
  std::vector<double> loss, dlogits;
  std::vector<double> z_loss;  // empty without a coefficient
};

/// With aliased, dlogits lies over logits: row for row, in whatever dtype it has.
LossResult run_loss(const LossCase& c, const std::vector<double>& logits, DType dtype,
                    DType gradient, const KernelTable& table, bool aliased = false,
                    int threads = 2) {
  Machine machine(table, threads);
  const Tensor z = machine.of({c.rows, c.cols}, dtype, logits);
  const Tensor target = machine.ints(c.target);
  const Tensor loss = machine.allocate({c.rows}, sum_dtype(dtype));
  Tensor separate;
  View dz = z;
  if (aliased) {
    dz.dtype = gradient;
    dz.row_stride = z.view().row_stride * static_cast<std::int64_t>(size_of(dtype)) /
                    static_cast<std::int64_t>(size_of(gradient));
  } else {
    separate = machine.allocate({c.rows, c.cols}, gradient);
    dz = separate;
  }
  const Tensor z_loss = c.z_loss_coef > 0 ? machine.allocate({c.rows}, sum_dtype(dtype)) : Tensor();
  launch(machine.ctx(), CrossEntropy{.logits = z,
                                     .target = target,
                                     .loss = loss,
                                     .dlogits = dz,
                                     .num_classes = c.num_classes,
                                     .grad_scale = c.grad_scale,
                                     .softcap = c.softcap,
                                     .z_loss_coef = c.z_loss_coef,
                                     .z_loss = z_loss.view()});
  return {read_rows(loss), read_rows(dz),
          z_loss.defined() ? read_rows(z_loss) : std::vector<double>()};
}

std::vector<std::int32_t> targets(std::int64_t rows, std::int64_t num_classes) {
  std::vector<std::int32_t> target;
  const PhiloxKey key = philox_key(1, "test", "targets");
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    target.push_back(i % 4 == 3 ? -1
                                : static_cast<std::int32_t>(philox_below(
                                      key, 0, n, static_cast<std::uint64_t>(num_classes))));
  }
  return target;
}

/// FP32 logits and gradients of any type, and narrow logits with gradients of theirs.
void check_fast(const LossCase& c, const std::vector<double>& drawn, double tolerance) {
  const std::pair<DType, DType> types[] = {{DType::f32, DType::f32},
                                           {DType::f32, DType::bf16},
                                           {DType::f32, DType::f16},
                                           {DType::bf16, DType::bf16},
                                           {DType::f16, DType::f16}};
  for (const auto& [dtype, gradient] : types) {
    Machine rounding_machine(cpu_reference_table(), 1);
    const std::vector<double> logits =
        read_rows(rounding_machine.of({c.rows, c.cols}, dtype, drawn));
    const LossResult exact = run_loss(c, logits, DType::f64, DType::f64, cpu_reference_table());
    for (const bool aliased : {false, true}) {
      CAPTURE(to_string(dtype));
      CAPTURE(to_string(gradient));
      CAPTURE(aliased);
      const LossResult fast = run_loss(c, logits, dtype, gradient, cpu_table(), aliased);
      CHECK(max_abs_difference(fast.loss, exact.loss) <= tolerance);
      CHECK(max_abs_difference(fast.z_loss, exact.z_loss) <= tolerance);
      const double rounding = gradient == DType::f32 ? 0 : test::rounding_of(gradient) / 2;
      const double most = c.z_loss_coef > 0 ? 2 : 1;  // times grad_scale
      CHECK(max_abs_difference(fast.dlogits, exact.dlogits) <=
            (tolerance + rounding) * most * std::abs(c.grad_scale));
    }
  }
}

}  // namespace

TEST_CASE("cross-entropy of equal logits is the log of the number of classes") {
  const LossCase c{.rows = 2, .cols = 4, .num_classes = 4, .grad_scale = 0.5, .target = {1, 3}};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const LossResult result =
        run_loss(c, std::vector<double>(8, 2.5), DType::f32, DType::f32, *table);
    CHECK(max_abs_difference(result.loss, {std::log(4.0), std::log(4.0)}) < 1e-6);
    CHECK(max_abs_difference(result.dlogits,
                             {0.125, -0.375, 0.125, 0.125, 0.125, 0.125, 0.125, -0.375}) < 1e-7);
  }
}

TEST_CASE("z-loss of equal logits is the squared log of their sum of exponentials") {
  const LossCase c{.rows = 2,
                   .cols = 4,
                   .num_classes = 4,
                   .grad_scale = 0.5,
                   .target = {1, -1},
                   .z_loss_coef = 0.25};
  const double lse = 2.5 + std::log(4.0), p = 0.25 * (1 + 0.5 * lse);
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const LossResult result =
        run_loss(c, std::vector<double>(8, 2.5), DType::f32, DType::f32, *table);
    CHECK(max_abs_difference(result.loss, {std::log(4.0), 0}) < 1e-6);
    CHECK(max_abs_difference(result.z_loss, {0.25 * lse * lse, 0}) < 1e-6);
    CHECK(max_abs_difference(result.dlogits,
                             {0.5 * p, 0.5 * (p - 1), 0.5 * p, 0.5 * p, 0, 0, 0, 0}) < 1e-7);
  }
}

TEST_CASE("parts of a vocabulary, joined by their statistics, are the vocabulary") {
  constexpr std::int64_t kRows = 9, kCols = 157;
  constexpr std::array<std::int64_t, 4> kCuts{0, 64, 65, kCols};
  const std::vector<double> logits = rounded(normals("logits", kRows * kCols), DType::f32);
  for (const double softcap : {0.0, 2.0}) {
    const LossCase c{.rows = kRows,
                     .cols = kCols,
                     .num_classes = kCols,
                     .grad_scale = 0.5,
                     .target = targets(kRows, kCols),
                     .softcap = softcap,
                     .z_loss_coef = 0.02};
    for (const DType dtype : {DType::f64, DType::f32}) {
      const auto& table = dtype == DType::f64 ? cpu_reference_table() : cpu_table();
      const LossResult whole = run_loss(c, logits, DType::f64, DType::f64, cpu_reference_table());
      Machine machine(table);
      const Tensor z = machine.of({kRows, kCols}, dtype, logits);
      const Tensor target = machine.ints(c.target);
      const Tensor statistics = machine.allocate({3 * kRows, 3}, dtype);
      const Tensor loss = machine.allocate({kRows}, dtype);
      const Tensor z_loss = machine.allocate({kRows}, dtype);
      const Tensor dz = machine.allocate({kRows, kCols}, dtype);
      for (std::size_t p = 0; p < 3; ++p) {
        const std::int64_t classes = kCuts[p + 1] - kCuts[p];
        launch(machine.ctx(), LogitStatistics{.logits = z.columns(kCuts[p], classes),
                                              .target = target,
                                              .statistics = statistics.row_range(
                                                  static_cast<std::int64_t>(p) * kRows, kRows),
                                              .num_classes = classes,
                                              .softcap = softcap,
                                              .part = {.first = kCuts[p], .whole = kCols}});
      }
      const double tolerance = dtype == DType::f64 ? 1e-14 : 2e-6;
      for (std::size_t p = 0; p < 3; ++p) {
        const std::int64_t classes = kCuts[p + 1] - kCuts[p];
        launch(machine.ctx(), CrossEntropy{.logits = z.columns(kCuts[p], classes),
                                           .target = target,
                                           .loss = loss,
                                           .dlogits = dz.columns(kCuts[p], classes).view(),
                                           .num_classes = classes,
                                           .part = {.first = kCuts[p], .whole = kCols},
                                           .statistics = statistics,
                                           .grad_scale = c.grad_scale,
                                           .softcap = softcap,
                                           .z_loss_coef = c.z_loss_coef,
                                           .z_loss = z_loss.view()});
        CHECK(max_abs_difference(read_rows(loss), whole.loss) <= tolerance);
        CHECK(max_abs_difference(read_rows(z_loss), whole.z_loss) <= tolerance);
      }
      CHECK(max_abs_difference(read_rows(dz), whole.dlogits) <= tolerance);
    }
  }
}

TEST_CASE("the scale of the loss multiplies its gradient and not the loss") {
  const LossCase c{
      .rows = 4, .cols = 7, .num_classes = 7, .grad_scale = 0.25, .target = targets(4, 7)};
  const std::vector<double> logits = rounded(normals("logits", 28), DType::f32);
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const LossResult plain = run_loss(c, logits, DType::f32, DType::f32, *table);
    Machine machine(*table);
    const Tensor z = machine.of({4, 7}, DType::f32, logits),
                 dz = machine.allocate({4, 7}, DType::f32);
    const Tensor loss = machine.allocate({4}, DType::f32);
    const Tensor decision = machine.allocate({UpdateDecision::kScalars}, DType::f64);
    *decision.view().as<UpdateDecision>() = {.loss_scale = 4096};
    launch(machine.ctx(), CrossEntropy{.logits = z,
                                       .target = machine.ints(c.target),
                                       .loss = loss,
                                       .dlogits = dz,
                                       .num_classes = 7,
                                       .grad_scale = c.grad_scale,
                                       .decision = decision});
    CHECK(read_rows(loss) == plain.loss);
    std::vector<double> expected = plain.dlogits;
    for (double& x : expected) x *= 4096;
    CHECK(read_rows(dz) == expected);
  }
}

TEST_CASE("the gradient of cross-entropy is that of finite differences") {
  for (const double z_loss_coef : {0.0, 0.3}) {
    const LossCase c{.rows = 4,
                     .cols = 7,
                     .num_classes = 6,
                     .grad_scale = -3,
                     .target = targets(4, 6),
                     .z_loss_coef = z_loss_coef};
    std::vector<double> z = normals("logits", 28, 2);
    const auto at = [&](std::size_t i, double value) {
      const double kept = std::exchange(z[i], value);
      const LossResult result = run_loss(c, z, DType::f64, DType::f64, cpu_reference_table());
      z[i] = kept;
      return result.loss[i / 7] + (z_loss_coef > 0 ? result.z_loss[i / 7] : 0);
    };
    const LossResult result = run_loss(c, z, DType::f64, DType::f64, cpu_reference_table());
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double slope = (at(i, z[i] + 1e-5) - at(i, z[i] - 1e-5)) / 2e-5;
      CHECK(std::abs(result.dlogits[i] - c.grad_scale * slope) < 1e-8);
    }
  }
}

TEST_CASE("fast cross-entropy is exact for every width, in place or not") {
  for (const std::int64_t cols : {1, 5, 16, 33, 2048, 2049, 5000, 50304}) {
    CAPTURE(cols);
    const LossCase c{.rows = 5,
                     .cols = cols,
                     .num_classes = cols,
                     .grad_scale = 0.25,
                     .target = targets(5, cols)};
    check_fast(c, rounded(normals("logits", 5 * cols, 3), DType::f32), 2e-6);
    LossCase with_z_loss = c;
    with_z_loss.z_loss_coef = 0.01;
    check_fast(with_z_loss, rounded(normals("logits", 5 * cols, 3), DType::f32), 4e-6);
  }
}

TEST_CASE("columns beyond the classes are neither counted nor changed by the loss") {
  LossCase c{
      .rows = 5, .cols = 2100, .num_classes = 2051, .grad_scale = 2, .target = targets(5, 2051)};
  std::vector<double> z = rounded(normals("logits", 5 * 2100), DType::f32);
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (i % 2100 >= 2051) z[i] = 1e30;
  }
  check_fast(c, z, 2e-6);
  const LossResult result = run_loss(c, z, DType::f32, DType::bf16, cpu_table());
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (i % 2100 >= 2051) CHECK(result.dlogits[i] == 0);
  }
}

TEST_CASE("untrained rows have no loss and no gradient, whatever their logits") {
  const LossCase c{.rows = 2, .cols = 40, .num_classes = 40, .target = {-1, 2}};
  std::vector<double> z(80, 0.0);
  for (std::size_t j = 0; j < 40; ++j) z[j] = NAN;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const LossResult result = run_loss(c, z, DType::f32, DType::f32, *table);
    CHECK(result.loss[0] == 0);
    CHECK(std::all_of(result.dlogits.begin(), result.dlogits.begin() + 40,
                      [](double x) { return x == 0; }));
    CHECK(result.loss[1] == test::relative(std::log(40.0)));
  }
}

TEST_CASE("huge, tiny and forbidden logits give finite losses") {
  std::vector<double> z = rounded(normals("logits", 4 * 5000), DType::f32);
  std::vector<std::int32_t> target = {0, 1, 4999, 2500};
  for (std::size_t j = 0; j < 5000; ++j) {
    z[j] *= 3e4;                             // one class has all the probability
    z[5000 + j] += 1e8;                      // a common shift
    if (j < 4000) z[10000 + j] = -INFINITY;  // whole pieces without probability
    z[15000 + j] = j == 2500 ? 3e38 : -3e38;
  }
  z = rounded(z, DType::f32);
  const LossCase c{.rows = 4, .cols = 5000, .num_classes = 5000, .target = target};
  const LossResult exact = run_loss(c, z, DType::f64, DType::f64, cpu_reference_table());
  const LossResult fast = run_loss(c, z, DType::f32, DType::f32, cpu_table());
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(fast.loss[i] == doctest::Approx(exact.loss[i]).epsilon(1e-6).scale(i == 1 ? 1e8 : 1));
  }
  CHECK(fast.loss[3] == 0);
  CHECK(std::all_of(fast.dlogits.begin(), fast.dlogits.end(),
                    [](double x) { return std::isfinite(x); }));
}

TEST_CASE("a NaN among the logits shows in the loss") {
  for (const std::size_t at : {0, 17, 4999}) {
    std::vector<double> z(5000, 1.0);
    z[at] = NAN;
    const LossCase c{.rows = 1, .cols = 5000, .num_classes = 5000, .target = {3}};
    CHECK(std::isnan(run_loss(c, z, DType::f32, DType::f32, cpu_table()).loss[0]));
  }
}

TEST_CASE("the bits of cross-entropy do not depend on the number of threads") {
  const LossCase c{.rows = 9, .cols = 3000, .num_classes = 3000, .target = targets(9, 3000)};
  const std::vector<double> z = normals("logits", 9 * 3000);
  const LossResult one = run_loss(c, z, DType::f32, DType::bf16, cpu_table(), true, 1);
  for (const int threads : {2, 3, 7}) {
    const LossResult many = run_loss(c, z, DType::f32, DType::bf16, cpu_table(), true, threads);
    CHECK(same_bits(one.loss, many.loss));
    CHECK(same_bits(one.dlogits, many.dlogits));
  }
}

TEST_CASE("cross-entropy refuses targets that are not classes, naming the row") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const std::int32_t bad : {-2, 10}) {
      const LossCase c{.rows = 2, .cols = 12, .num_classes = 10, .target = {0, bad}};
      CHECK_THROWS_WITH_AS(
          run_loss(c, std::vector<double>(24, 0.0), DType::f32, DType::f32, *table),
          doctest::Contains("row 1"), DataError);
    }
  }
}

TEST_CASE("cross-entropy checks its operands") {
  Machine machine(cpu_table());
  const Tensor z = machine.allocate({2, 8}, DType::f32);
  const Tensor dz = machine.allocate({2, 8}, DType::f32);
  const Tensor loss = machine.allocate({2}, DType::f32);
  const Tensor target = machine.ints({0, 1});
  const Tensor statistics = machine.allocate({2 * 2, 3}, DType::f32);
  const CrossEntropy good{
      .logits = z, .target = target, .loss = loss, .dlogits = dz, .num_classes = 8};
  good.check();
  const auto refused = [&](auto&& change) {
    CrossEntropy bad = good;
    change(bad);
    CHECK_THROWS_AS(bad.check(), InternalError);
  };
  refused([](CrossEntropy& op) { op.num_classes = 9; });
  refused([](CrossEntropy& op) { op.part = {.first = 4, .whole = 20}; });  // no statistics
  refused([&](CrossEntropy& op) {
    op.part = {.first = 1, .whole = 2};
    op.statistics = statistics;
  });
  refused([](CrossEntropy& op) { op.statistics = op.loss; });
  refused([](CrossEntropy& op) { op.num_classes = 0; });
  refused([](CrossEntropy& op) { op.z_loss_coef = 0.1; });  // nowhere to write it
  refused([](CrossEntropy& op) { op.z_loss = op.loss; });   // no coefficient
  refused([](CrossEntropy& op) {
    op.z_loss_coef = -0.1;
    op.z_loss = op.loss;
  });
  refused([&](CrossEntropy& op) { op.logits.dtype = DType::bf16; });
  refused([&](CrossEntropy& op) { op.dlogits.dtype = DType::f64; });
  refused([&](CrossEntropy& op) { op.target = loss; });
  refused([&](CrossEntropy& op) { op.target.shape = {1}; });
  refused([&](CrossEntropy& op) { op.loss.dtype = DType::bf16; });
  refused([&](CrossEntropy& op) { op.dlogits.shape = {2, 7}; });
  // A narrower gradient in place would run into rows that are still to be read.
  refused([&](CrossEntropy& op) {
    op.dlogits = z;
    op.dlogits.dtype = DType::bf16;
  });
}

TEST_CASE("a sum adds to what is there, in double, whatever the number of threads") {
  for (const std::int64_t n : {0, 1, 7, 1024, 1025, 5000, 600000}) {
    CAPTURE(n);
    const std::vector<double> x = rounded(normals("x", n), DType::f32);
    long double exact = 0;
    for (const double value : x) exact += value;
    std::vector<double> sums;
    for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        for (const int threads : {1, 2, 3, 7}) {
          Machine machine(*table, threads);
          const Tensor out = machine.of({1}, DType::f64, {2.5});
          launch(machine.ctx(), Sum{.x = machine.of({n}, dtype, x), .out = out});
          sums.push_back(read_rows(out)[0]);
          CHECK(std::abs(sums.back() - 2.5 - static_cast<double>(exact)) < 1e-10);
        }
      }
    }
    for (std::size_t i = 9; i < sums.size(); ++i) CHECK(sums[i] == sums[8]);
  }
}

}  // namespace llmtrain::kernels
