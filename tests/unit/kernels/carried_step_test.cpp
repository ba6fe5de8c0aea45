// Orthonormal vectors by what they must be, and moments that are carried between subspaces.
#include <doctest/doctest.h>

#include "kernels/projected.hpp"
#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

struct Size {
  std::int64_t count, length;
};
constexpr Size kSizes[] = {{1, 1}, {1, 7}, {3, 3}, {5, 13}, {16, 64}, {33, 40}, {40, 300}};

Values transposed(const Values& a, std::int64_t rows, std::int64_t cols) {
  Values t(a.size());
  for (std::int64_t e = 0; e < rows * cols; ++e) {
    t[static_cast<std::size_t>(e % cols * rows + e / cols)] = a[static_cast<std::size_t>(e)];
  }
  return t;
}

struct Way {
  DType dtype = DType::f64;
  const KernelTable* table = &cpu_table();
  int threads = 1;
  bool of_rows = true;
  double rounding = 1e-12;
};

/// Of vectors one after the other.
Values orthonormal(const Values& y, const Size& size, const Way& way = {}) {
  Machine machine(*way.table, way.dtype, way.dtype, way.threads);
  const Shape shape = way.of_rows ? Shape{size.count, size.length} : Shape{size.length, size.count};
  const Tensor q = machine.empty(shape, way.dtype);
  const Values operand = way.of_rows ? y : transposed(y, size.count, size.length);
  machine.run(Orthonormalize{.y = machine.of(operand, shape, way.dtype),
                             .q = q,
                             .decision = decision_of(machine, 1, 2),
                             .of_rows = way.of_rows,
                             .rounding = way.rounding});
  const Values found = values_of(q);
  return way.of_rows ? found : transposed(found, size.length, size.count);
}

Values normal_values(const Size& size) {
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  return values_of(machine.normals("y", {size.count, size.length}, DType::f64, DType::f32));
}

double dot(const Values& a, std::int64_t i, const Values& b, std::int64_t j, std::int64_t n) {
  long double sum = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    sum += static_cast<long double>(a[static_cast<std::size_t>(i * n + k)]) *
           b[static_cast<std::size_t>(j * n + k)];
  }
  return static_cast<double>(sum);
}

double skewness(const Values& q, const Size& size) {
  double most = 0;
  for (std::int64_t i = 0; i < size.count; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      most = std::max(most, std::abs(dot(q, i, q, j, size.length) - (i == j ? 1 : 0)));
    }
  }
  return most;
}

Values vector_of(const Values& all, std::int64_t k, std::int64_t n) {
  return Values(all.begin() + k * n, all.begin() + (k + 1) * n);
}

}  // namespace

TEST_CASE("orthonormal vectors are the factor of a triangle without negative diagonal") {
  for (const Size& size : kSizes) {
    CAPTURE(size.count);
    CAPTURE(size.length);
    const Values y = normal_values(size), q = orthonormal(y, size);
    const std::int64_t n = size.length;
    CHECK(skewness(q, size) < 1e-14);
    for (std::int64_t k = 0; k < size.count; ++k) {
      CHECK(dot(y, k, q, k, n) > 0);
      for (std::int64_t later = k + 1; later < size.count; ++later) {
        CHECK(std::abs(dot(y, k, q, later, n)) < 1e-13 * std::sqrt(static_cast<double>(n)));
      }
      // Nothing of y is outside of the vectors up to its own.
      Values rest = vector_of(y, k, n);
      for (std::int64_t i = 0; i <= k; ++i) {
        const double part = dot(y, k, q, i, n);
        for (std::int64_t j = 0; j < n; ++j) {
          rest[static_cast<std::size_t>(j)] -= part * q[static_cast<std::size_t>(i * n + j)];
        }
      }
      CHECK(dot(rest, 0, rest, 0, n) < 1e-25);
    }
  }
}

TEST_CASE("orthonormal vectors do not depend on threads, the table, a side or a power of two") {
  for (const Size& size : kSizes) {
    const Values y = normal_values(size);
    const Values one = orthonormal(y, size, {.table = &cpu_reference_table()});
    for (int threads = 1; threads <= 5; ++threads) {
      CHECK(trial::same_bits(orthonormal(y, size, {.threads = threads}), one));
    }
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const trial::InstructionSet only(target);
      CHECK(trial::same_bits(orthonormal(y, size), one));
    }
    CHECK(orthonormal(y, size, {.of_rows = false}) == one);
    for (const int exponent : {-1000, 900}) {
      Values scaled = y;
      for (double& x : scaled) x = std::ldexp(x, exponent);
      CHECK(orthonormal(scaled, size) == one);
    }
    const Values narrow = orthonormal(y, size, {.dtype = DType::f32});
    for (std::size_t e = 0; e < one.size(); ++e) {
      CHECK(narrow[e] == static_cast<double>(static_cast<float>(one[e])));
    }
  }
}

TEST_CASE("vectors that are nearly parallel are orthonormal to rounding") {
  const Size size{4, 30};
  Values y = normal_values(size);
  for (std::size_t e = 30; e < y.size(); ++e) y[e] = y[e % 30] + 1e-9 * y[e];
  CHECK(skewness(orthonormal(y, size), size) < 1e-14);
}

TEST_CASE("axes are in the place of vectors of which rounding is left, behind all others") {
  const Size size{5, 20};
  const std::int64_t n = size.length;
  for (const double noise : {0.0, 1e-16, -1e-16}) {
    CAPTURE(noise);
    Values y = normal_values(size);
    const Values others = normal_values({7, 20});
    // 0, a, 3a, b, a + b: what counts is a and b.
    for (std::int64_t j = 0; j < n; ++j) {
      const auto at = [&](std::int64_t k) -> double& {
        return y[static_cast<std::size_t>(k * n + j)];
      };
      const double a = others[static_cast<std::size_t>(j)];
      const double b = others[static_cast<std::size_t>(n + j)];
      const double r = noise * others[static_cast<std::size_t>(2 * n + j)];
      at(0) = r * noise;
      at(1) = a;
      at(2) = 3 * a + r;
      at(3) = b;
      at(4) = a + b - r;
    }
    const Values q = orthonormal(y, size);
    CHECK(skewness(q, size) < 1e-14);
    const Values two = orthonormal(Values(others.begin(), others.begin() + 2 * n), {2, n});
    CHECK(trial::max_difference(vector_of(q, 1, n), vector_of(two, 0, n)) < 1e-14);
    CHECK(trial::max_difference(vector_of(q, 3, n), vector_of(two, 1, n)) < 1e-14);
    // Of the first axes, one after the other.
    const Values plain = [&] {
      Values without = y;
      for (const std::int64_t k : {0, 2, 4}) {
        for (std::int64_t j = 0; j < n; ++j) without[static_cast<std::size_t>(k * n + j)] = 0;
      }
      return orthonormal(without, size);
    }();
    CHECK(trial::max_difference(q, plain) < 1e-13);
    CHECK(q[0] > 0.5);
    CHECK(std::abs(q[static_cast<std::size_t>(2 * n)]) < 1e-14);
  }
}

TEST_CASE("vectors that are zero become the axes, and numbers that are none give no NaN") {
  for (const bool of_rows : {true, false}) {
    const Values q = orthonormal(Values(4 * 9), {4, 9}, {.dtype = DType::f32, .of_rows = of_rows});
    for (std::size_t e = 0; e < q.size(); ++e) CHECK(q[e] == (e / 9 == e % 9 ? 1 : 0));
  }
  Values y = normal_values({3, 8});
  y[9] = static_cast<double>(NAN);
  for (const double x : orthonormal(y, {3, 8})) CHECK(std::isfinite(x));
}

TEST_CASE("vectors are made orthonormal from the second update on, in a step that applies") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const int t : {1, 2, 9}) {
      for (const bool applies : {true, false}) {
        Machine machine(*table, DType::f32, DType::f32, 1);
        const Tensor q = machine.empty({1, 2}, DType::f32);
        const Tensor decision = decision_of(machine, 1, t);
        if (!applies) decision.view().as<UpdateDecision>()->apply = 0;
        machine.run(Orthonormalize{.y = machine.of({0, 2}, {1, 2}, DType::f32),
                                   .q = q,
                                   .decision = decision,
                                   .of_rows = true,
                                   .rounding = 1e-6});
        const double left = Machine::kUntouched;
        CHECK(values_of(q) == (t > 1 && applies ? Values{0, 1} : Values{left, left}));
      }
    }
  }
}

TEST_CASE(
    "the left singular vectors of a square matrix are the right ones of the other way round") {
  const Values g = normal_values({6, 6});
  const auto vectors = [&](const Values& of, bool left) {
    Machine machine(cpu_table(), DType::f64, DType::f64, 1);
    const Tensor found = machine.empty(left ? Shape{6, 4} : Shape{4, 6}, DType::f64);
    machine.run(TopSingularVectors{.g = machine.of(of, {6, 6}, DType::f64),
                                   .vectors = found,
                                   .decision = decision_of(machine, 1),
                                   .left_of_square = left});
    return left ? transposed(values_of(found), 6, 4) : values_of(found);
  };
  CHECK(vectors(g, true) == vectors(transposed(g, 6, 6), false));
}

TEST_CASE("moments without bias are those of the updates before, of which the first has none") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const int t : {1, 2, 7}) {
      Machine machine(cpu_table(), dtype, dtype, 1);
      const Tensor m = machine.of({3, -0.5}, {2}, dtype), v = machine.of({2, 7}, {2}, dtype);
      const Tensor mean = machine.empty({2}, dtype), variance = machine.empty({2}, dtype);
      const Tensor decision = decision_of(machine, 1, t, 0.75, 0.875);
      const UnbiasedMoments moments{.m = m,
                                    .v = v,
                                    .mean = mean,
                                    .variance = variance,
                                    .decision = decision,
                                    .beta1 = 0.75,
                                    .beta2 = 0.875};
      decision.view().as<UpdateDecision>()->apply = 0;
      machine.run(moments);
      CHECK(values_of(mean) == Values(2, Machine::kUntouched));
      CHECK(values_of(variance) == Values(2, Machine::kUntouched));
      decision.view().as<UpdateDecision>()->apply = 1;
      machine.run(moments);
      if (t == 1) {
        CHECK(values_of(mean) == Values{0, 0});
        CHECK(values_of(variance) == Values{0, 0});
        continue;
      }
      const double c1 = 1 - std::pow(0.75, t - 1), c2 = 1 - std::pow(0.875, t - 1);
      const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-5;
      CHECK(values_of(mean)[0] == test::relative(3 / c1, tolerance));
      CHECK(values_of(mean)[1] == test::relative(-0.5 / c1, tolerance));
      CHECK(values_of(variance)[0] == test::relative(2 / c2 - 9 / (c1 * c1), tolerance));
      CHECK(values_of(variance)[1] == test::relative(7 / c2 - 0.25 / (c1 * c1), tolerance));
    }
  }
}

TEST_CASE("a carried step is Adam's from the moments that were carried, whose v is a magnitude") {
  const double beta1 = 0.75, beta2 = 0.875, eps = 0.5;
  for (const int t : {1, 2, 7}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(cpu_table(), dtype, dtype, 1);
      const Values g{4, -1}, carried{1, 0.5}, variance{3, -40};
      const Tensor y = machine.of(g, {2}, dtype), m = machine.empty({2}, dtype);
      const Tensor v = machine.empty({2}, dtype);
      const Tensor decision = decision_of(machine, 1, t, beta1, beta2);
      const CarriedStep step{.g = y,
                             .carried = machine.of(carried, {2}, dtype),
                             .variance = machine.of(variance, {2}, dtype),
                             .m = m,
                             .v = v,
                             .y = y,
                             .decision = decision,
                             .rule = {.beta1 = beta1, .beta2 = beta2, .eps = eps}};
      decision.view().as<UpdateDecision>()->apply = 0;
      machine.run(step);
      CHECK(values_of(y) == g);
      CHECK(values_of(v) == Values(2, Machine::kUntouched));
      decision.view().as<UpdateDecision>()->apply = 1;
      machine.run(step);
      const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-5;
      for (std::size_t i = 0; i < 2; ++i) {
        const double c1 = 1 - std::pow(beta1, t - 1), c2 = 1 - std::pow(beta2, t - 1);
        const double mean = t == 1 ? 0 : carried[i] / c1;
        const double m0 = t == 1 ? 0 : carried[i];
        const double v0 = t == 1 ? 0 : std::abs(c2 * (variance[i] + mean * mean));
        const double m1 = beta1 * m0 + (1 - beta1) * g[i];
        const double v1 = beta2 * v0 + (1 - beta2) * g[i] * g[i];
        const double root = std::sqrt(v1 / (1 - std::pow(beta2, t))) + eps;
        CHECK(values_of(m)[i] == test::relative(m1, tolerance));
        CHECK(values_of(v)[i] == test::relative(v1, tolerance));
        CHECK(values_of(y)[i] == test::relative(m1 / (1 - std::pow(beta1, t)) / root, tolerance));
      }
    }
  }
}

TEST_CASE("squares of elements are in their place") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor x = machine.of({3, -2, 0}, {3}, DType::f32);
  machine.run(SquareElements{.x = x, .y = x});
  CHECK(values_of(x) == Values{9, 4, 0});
}

TEST_CASE("kernels of subspaces that move refuse what does not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor two = machine.of({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f32);
  const Tensor other = machine.empty({3, 2}, DType::f32), wide = machine.empty({2, 3}, DType::f64);
  const Tensor four = machine.empty({2, 4}, DType::f32), decision = decision_of(machine, 1, 2);
  const auto refused = [&](const auto& kernel) {
    CHECK_THROWS_AS(machine.run(kernel), InternalError);
  };
  const Orthonormalize good{
      .y = two, .q = two, .decision = decision, .of_rows = true, .rounding = 1e-6};
  machine.run(good);
  const auto with = [&](const auto& change) {
    Orthonormalize k = good;
    change(k);
    refused(k);
  };
  with([&](Orthonormalize& k) { k.of_rows = false; });
  with([&](Orthonormalize& k) { k.q = other; });
  with([&](Orthonormalize& k) { k.q = wide; });
  with([&](Orthonormalize& k) { k.rounding = 0; });
  with([&](Orthonormalize& k) { k.decision = two; });
  refused(SquareElements{.x = two, .y = four});
  UnbiasedMoments moments{.m = two, .v = two, .mean = two, .variance = four, .decision = decision};
  refused(moments);
  moments.variance = two;
  moments.beta2 = 1;
  refused(moments);
  refused(CarriedStep{.g = two,
                      .carried = two,
                      .variance = wide,
                      .m = two,
                      .v = two,
                      .y = two,
                      .decision = decision,
                      .rule = {}});
}

}  // namespace llmtrain::kernels
