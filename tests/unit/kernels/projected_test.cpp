// Singular vectors by what they must be, and steps in subspaces.
#include "kernels/projected.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::kSameBits;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

struct Size {
  std::int64_t rows, cols;
  std::int64_t side() const { return std::min(rows, cols); }
  bool of_rows() const { return rows >= cols; }
};
constexpr Size kShapes[] = {{1, 1},   {1, 7},   {7, 1},    {7, 13},  {13, 7},
                            {40, 40}, {64, 33}, {33, 129}, {300, 5}, {257, 66}};

Values transposed(const Values& a, const Size& size) {
  Values t(a.size());
  for (std::size_t e = 0; e < a.size(); ++e) {
    const auto rows = static_cast<std::size_t>(size.rows),
               cols = static_cast<std::size_t>(size.cols);
    t[e % cols * rows + e / cols] = a[e];
  }
  return t;
}

/// The vectors as rows, one after the other, whichever side they are of.
Values vectors_of(const Values& g, const Size& size, std::int64_t rank, DType dtype,
                  const KernelTable& table = cpu_table(), int threads = 1) {
  Machine machine(table, dtype, dtype, threads);
  const Shape shape = size.of_rows() ? Shape{rank, size.cols} : Shape{size.rows, rank};
  const Tensor vectors = machine.empty(shape, dtype);
  machine.run(TopSingularVectors{.g = machine.of(g, {size.rows, size.cols}, dtype),
                                 .vectors = vectors,
                                 .decision = decision_of(machine, 1)});
  const Values values = values_of(vectors);
  return size.of_rows() ? values : transposed(values, {size.rows, rank});
}

Values normal_values(const Size& size, DType dtype = DType::f64) {
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  return values_of(machine.normals("g", {size.rows, size.cols}, DType::f64, dtype));
}

double dot(const Values& a, std::int64_t i, const Values& b, std::int64_t j, std::int64_t n) {
  double sum = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    sum += a[static_cast<std::size_t>(i * n + k)] * b[static_cast<std::size_t>(j * n + k)];
  }
  return sum;
}

/// How far rows of length n are from an orthonormal set.
double skewness(const Values& rows, std::int64_t n) {
  double most = 0;
  const std::int64_t count = std::ssize(rows) / n;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      most = std::max(most, std::abs(dot(rows, i, rows, j, n) - (i == j ? 1 : 0)));
    }
  }
  return most;
}

/// Row i of `lines` times each of the vectors, as lines.
Values seen_along(const Values& g, const Size& size, const Values& vectors) {
  const Values lines = size.of_rows() ? g : transposed(g, size);
  const std::int64_t n = size.side(), count = std::ssize(lines) / n, r = std::ssize(vectors) / n;
  Values seen;
  for (std::int64_t k = 0; k < r; ++k) {
    for (std::int64_t i = 0; i < count; ++i) seen.push_back(dot(vectors, k, lines, i, n));
  }
  return seen;
}

/// Of one vector and noise beside it.
Values outer_product(const Size& size, double noise) {
  const Values rounding = normal_values(size);
  Values g;
  for (std::int64_t e = 0; e < size.rows * size.cols; ++e) {
    g.push_back(std::sin(1.0 + static_cast<double>(e / size.cols)) *
                    std::cos(2.0 + static_cast<double>(e % size.cols)) +
                noise * rounding[static_cast<std::size_t>(e)]);
  }
  return g;
}

}  // namespace

TEST_CASE("singular vectors are orthonormal, see a matrix in orthogonal parts, the largest first") {
  for (const Size& size : kShapes) {
    CAPTURE(size.rows);
    CAPTURE(size.cols);
    const Values g = normal_values(size), all = vectors_of(g, size, size.side(), DType::f64);
    const std::int64_t n = size.side(), count = std::max(size.rows, size.cols);
    CHECK(skewness(all, n) < 1e-13);
    const Values seen = seen_along(g, size, all);
    const double largest = dot(seen, 0, seen, 0, count);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        CHECK(std::abs(dot(seen, i, seen, j, count)) < 1e-13 * largest);
      }
      if (i == 0) continue;
      CHECK(dot(seen, i, seen, i, count) <= dot(seen, i - 1, seen, i - 1, count) * (1 + 1e-12));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const auto first = all.begin() + i * n;
      const auto most = std::max_element(
          first, first + n, [](double x, double y) { return std::abs(x) < std::abs(y); });
      CHECK(*most > 0);
    }
  }
}

TEST_CASE("fewer singular vectors are the first of all, and those of FP32 the rounded ones") {
  for (const Size& size : kShapes) {
    const Values g = normal_values(size, DType::f32);
    const Values all = vectors_of(g, size, size.side(), DType::f64);
    const std::int64_t few = (size.side() + 1) / 2;
    CHECK(vectors_of(g, size, few, DType::f64) ==
          Values(all.begin(), all.begin() + few * size.side()));
    const Values narrow = vectors_of(g, size, size.side(), DType::f32);
    for (std::size_t e = 0; e < all.size(); ++e) {
      CHECK(narrow[e] == static_cast<double>(static_cast<float>(all[e])));
    }
  }
}

TEST_CASE("singular vectors do not depend on threads, the table, a side or a power of two") {
  for (const Size& size : kShapes) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Values g = normal_values(size, DType::f32);
      const Values one = vectors_of(g, size, size.side(), dtype, cpu_reference_table());
      for (int threads = 1; threads <= 7; ++threads) {
        CHECK(trial::same_bits(vectors_of(g, size, size.side(), dtype, cpu_table(), threads), one));
      }
      for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
        const trial::InstructionSet only(target);
        CHECK(trial::same_bits(vectors_of(g, size, size.side(), dtype), one));
      }
      if (size.rows != size.cols) {
        const Size other{size.cols, size.rows};
        CHECK(vectors_of(transposed(g, size), other, size.side(), dtype) == one);
      }
      for (const int exponent : {-100, 100, -900, 900}) {
        if (dtype == DType::f32 && std::abs(exponent) > 100) continue;
        Values scaled = g;
        for (double& x : scaled) x = std::ldexp(x, exponent);
        CHECK(vectors_of(scaled, size, size.side(), dtype) == one);
      }
    }
  }
}

TEST_CASE("vectors of singular values that are a millionth of the largest are exact to 1e-9") {
  constexpr std::int64_t n = 24, rows = 150;
  // Orthogonal: reflections along some vector of either side.
  const auto reflection = [](std::int64_t i, std::int64_t j, std::int64_t size) {
    double squares = 0;
    const auto w = [](std::int64_t k) { return std::sin(1 + 3.0 * static_cast<double>(k)); };
    for (std::int64_t k = 0; k < size; ++k) squares += w(k) * w(k);
    return (i == j ? 1 : 0) - 2 * w(i) * w(j) / squares;
  };
  Values g, expected;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < n; ++k) {
        const double value = std::pow(10.0, -6.0 * static_cast<double>(k) / (n - 1));
        sum += reflection(i, k, rows) * value * reflection(k, j, n);
      }
      g.push_back(sum);
      if (i < n) expected.push_back(reflection(i, j, n));
    }
  }
  const Values found = vectors_of(g, {rows, n}, n, DType::f64);
  for (std::int64_t k = 0; k < n; ++k) {
    CHECK(1 - std::abs(dot(found, k, expected, k, n)) < 1e-13);
    const double sign = dot(found, k, expected, k, n) < 0 ? -1 : 1;
    for (std::int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<std::size_t>(k * n + j);
      CHECK(std::abs(found[at] - sign * expected[at]) < 1e-9);
    }
  }
}

TEST_CASE("a matrix of zeros has the axes for singular vectors") {
  for (const Size& size : kShapes) {
    const std::int64_t n = size.side();
    const Values found =
        vectors_of(Values(static_cast<std::size_t>(size.rows * size.cols)), size, n, DType::f32);
    for (std::int64_t e = 0; e < n * n; ++e) {
      CHECK(found[static_cast<std::size_t>(e)] == (e / n == e % n ? 1 : 0));
    }
  }
}

TEST_CASE("vectors without a singular value are orthonormal, and rounding does not choose them") {
  for (const Size& size : {Size{40, 17}, Size{17, 40}, Size{3, 3}, Size{9, 2}}) {
    const std::int64_t n = size.side();
    const Values plain = vectors_of(outer_product(size, 0), size, n, DType::f64);
    CHECK(skewness(plain, n) < 1e-14);
    for (const double noise : {1e-16, -1e-16}) {
      const Values other = vectors_of(outer_product(size, noise), size, n, DType::f64);
      CHECK(trial::max_difference(plain, other) < 1e-13);
    }
    const Values narrow = vectors_of(outer_product(size, 1e-8), size, n, DType::f32);
    CHECK(trial::max_difference(plain, narrow) < 1e-6);
    // Of the one that has a value, all is seen.
    const Values seen = seen_along(outer_product(size, 0), size, plain);
    const std::int64_t count = std::max(size.rows, size.cols);
    for (std::int64_t k = 1; k < n; ++k) CHECK(dot(seen, k, seen, k, count) < 1e-26);
  }
}

TEST_CASE("the first of equally large components decides the sign") {
  const double half = std::sqrt(0.5);
  for (const double noise : {0.0, 1e-12, -1e-12}) {
    const Values found = vectors_of({3, 3 + noise, 1 + noise, -1}, {2, 2}, 2, DType::f64);
    const Values expected{half, half, half, -half};
    CHECK(trial::max_difference(found, expected) < 1e-12);
  }
}

TEST_CASE("singular vectors are found in the first update and every `gap` updates after it") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (int t = 1; t <= 9; ++t) {
      Machine machine(*table, DType::f32, DType::f32, 1);
      const Tensor vectors = machine.empty({1, 2}, DType::f32);
      machine.run(TopSingularVectors{.g = machine.of({0, 2, 0, 0}, {2, 2}, DType::f32),
                                     .vectors = vectors,
                                     .decision = decision_of(machine, 1, t),
                                     .gap = 4});
      const double left = Machine::kUntouched;
      CHECK(values_of(vectors) == (t % 4 == 1 ? Values{0, 1} : Values{left, left}));
    }
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor vectors = machine.empty({1, 2}, DType::f32), decision = decision_of(machine, 1);
    decision.view().as<UpdateDecision>()->apply = 0;
    const Tensor g = machine.of({0, 2, 0, 0}, {2, 2}, DType::f32);
    machine.run(TopSingularVectors{.g = g, .vectors = vectors, .decision = decision});
    CHECK(values_of(vectors) == Values(2, Machine::kUntouched));
  }
}

TEST_CASE("a step in a subspace is Adam's with eps beside the uncorrected root") {
  for (const std::int64_t n : trial::kSizes) {
    trial::compare(
        [&](Machine& machine) {
          const Tensor g = machine.operand("g", {n}), m = machine.operand("m", {n});
          const Tensor v = machine.operand("v", {n}), y = machine.output({n});
          Values squares = values_of(v);
          for (double& x : squares) x = std::abs(x);
          trial::set_values(v, squares);
          const Tensor decision = decision_of(machine, 0.5, 3, 0.9, 0.99);
          const rules::AdamEpsHat rule{{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3}};
          machine.run(
              SubspaceStep{.g = g, .m = m, .v = v, .y = y, .decision = decision, .rule = rule});
          return trial::outputs(y, m, v);
        },
        DType::f32, kSameBits);
  }
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor g = machine.of({4}, {1}, DType::f32), m = machine.of({8}, {1}, DType::f32);
    const Tensor v = machine.of({48}, {1}, DType::f32), decision = decision_of(machine, 1);
    const rules::AdamEpsHat rule{{.beta1 = 0.5, .beta2 = 0.75, .eps = 0.5}};
    *decision.view().as<UpdateDecision>() = {
        .apply = 1, .lr = 7, .updates = 1, .bias_correction1 = 0.5, .sqrt_bias_correction2 = 0.25};
    const SubspaceStep step{.g = g, .m = m, .v = v, .y = g, .decision = decision, .rule = rule};
    machine.run(step);
    CHECK(values_of(m) == Values{6});
    CHECK(values_of(v) == Values{40});
    CHECK(values_of(g).front() == test::relative(0.5 * 6 / (std::sqrt(40.0) + 0.5), 1e-6));
    decision.view().as<UpdateDecision>()->apply = 0;
    const Values before = values_of(g);
    machine.run(step);
    CHECK(values_of(g) == before);
    CHECK(values_of(m) == Values{6});
  }
}

TEST_CASE("kernels of subspaces refuse what does not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor g = machine.empty({4, 3}, DType::f32), decision = decision_of(machine, 1);
  const Tensor two = machine.empty({2, 3}, DType::f32), four = machine.empty({4, 3}, DType::f32);
  const Tensor wide = machine.empty({2, 3}, DType::f64), tall = machine.empty({4, 2}, DType::f32);
  const auto refused = [&](const TopSingularVectors& k) {
    CHECK_THROWS_AS(machine.run(k), InternalError);
  };
  const TopSingularVectors good{.g = g, .vectors = two, .decision = decision};
  machine.run(good);
  const auto with = [&](const View& vectors) {
    TopSingularVectors k = good;
    k.vectors = vectors;
    return k;
  };
  refused(with(four));
  refused(with(tall));
  refused(with(wide));
  refused({.g = g, .vectors = two, .decision = decision, .gap = 0});
  refused({.g = g, .vectors = two, .decision = g});
  const SubspaceStep step{.g = two, .m = two, .v = two, .y = two, .decision = decision, .rule = {}};
  SubspaceStep other = step;
  other.m = wide;
  CHECK_THROWS_AS(machine.run(other), InternalError);
  other = step;
  other.v = tall;
  CHECK_THROWS_AS(machine.run(other), InternalError);
}

}  // namespace llmtrain::kernels
