#include "lib/plan/kernel_model.hpp"

#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::plan {

namespace {

// Times that grow with every size, at a rate that does too.
KernelModel product_model() {
  const KernelModel::Axis axis = {64, 256, 1024};
  std::vector<double> work, seconds;
  for (const double m : axis) {
    for (const double n : axis) {
      for (const double k : axis) {
        work.push_back(2 * m * n * k);
        seconds.push_back(1e-6 + std::pow(work.back(), 0.9) * 1e-10);
      }
    }
  }
  return {{axis, axis, axis}, work, seconds};
}

KernelPoint product(double m, double n, double k) { return {{m, n, k}, 2 * m * n * k}; }

}  // namespace

TEST_CASE("a prediction at a grid point is the measured time") {
  const KernelModel model = product_model();
  const auto& axis = model.axes()[0];
  std::size_t i = 0;
  for (const double m : axis) {
    for (const double n : axis) {
      for (const double k : axis) {
        CHECK(model.predict(product(m, n, k)) == test::relative(model.seconds()[i++], 1e-12));
      }
    }
  }
}

TEST_CASE("predictions grow with every size inside and outside of the grid") {
  const KernelModel model = product_model();
  for (int axis = 0; axis < 3; ++axis) {
    double last = 0;
    for (double size = 32; size < 10000; size *= 1.07) {
      std::array<double, 3> at = {200, 300, 500};
      at[static_cast<std::size_t>(axis)] = size;
      const double seconds = model.predict(product(at[0], at[1], at[2]));
      CHECK(seconds >= last);
      last = seconds;
    }
  }
}

TEST_CASE("halfway between two points in logarithms the time is their geometric mean") {
  const KernelModel model({{1000, 4000}}, {1000, 4000}, {1e-6, 9e-6});
  CHECK(model.predict({{2000}, 2000}) == test::relative(3e-6));
}

TEST_CASE("outside of the grid time goes with the work, down to the shortest time") {
  const KernelModel model({{1000, 4000}}, {1000, 4000}, {1e-6, 9e-6});
  CHECK(model.predict({{40000}, 40000}) == test::relative(90e-6));
  CHECK(model.predict({{10}, 10}) == test::relative(1e-6));
}

TEST_CASE("a point that was not measured has the rate of the next lower one on its longest axis") {
  // Points (10, 10), (10, 100), (20, 10), (20, 100); the last is missing: its neighbour is (20,
  // 10).
  const KernelModel model({{10, 20}, {10, 100}}, {100, 1000, 200, 2000}, {1e-6, 5e-6, 4e-6, 0});
  CHECK(model.predict({{20, 100}, 2000}) == test::relative(4e-5));
  CHECK(model.seconds()[3] == 0);
}

TEST_CASE("a grid that is not one is refused") {
  CHECK_THROWS_AS(KernelModel({{2, 1}}, {1, 1}, {1, 1}), DataError);     // descending
  CHECK_THROWS_AS(KernelModel({{0, 1}}, {1, 1}, {1, 1}), DataError);     // not positive
  CHECK_THROWS_AS(KernelModel({{1, 2}}, {1}, {1, 1}), DataError);        // too little work
  CHECK_THROWS_AS(KernelModel({{1, 2}}, {1, 1}, {1, 1, 1}), DataError);  // too many times
  CHECK_THROWS_AS(KernelModel({{1, 2}}, {1, 0}, {1, 1}), DataError);     // no work
  CHECK_THROWS_AS(KernelModel({{1, 2}}, {1, 1}, {1, -1}), DataError);    // negative time
  CHECK_THROWS_AS(KernelModel({{1, 2}}, {1, 1}, {0, 1}), DataError);     // first not measured
  CHECK_THROWS_AS(KernelModel({{1, NAN}}, {1, 1}, {1, 1}), DataError);
  CHECK_THROWS_AS(KernelModel({}, {}, {}), DataError);
}

TEST_CASE("form and optional operands make tables of their own, sizes do not") {
  CHECK(key_of("matmul", DType::f32, {1, 2, 3, 2}) == KernelKey{"matmul", DType::f32, 2});
  CHECK(key_of("matmul", DType::f32, {4, 5, 6, 2}) == KernelKey{"matmul", DType::f32, 2});
  CHECK(key_of("norm_forward", DType::bf16, {8, 16, 1}).variant == 1);
  CHECK(key_of("attention_forward", DType::bf16, {2, 16, 4, 64}).variant == 0);
}

TEST_CASE("products lie by their sizes, other kernels by the bytes they move") {
  const kernels::Cost cost{.flops = 48, .bytes_read = 100, .bytes_written = 20};
  const KernelPoint matmul = point_of("matmul", {2, 3, 4, 1}, cost);
  CHECK(matmul.position == std::vector<double>{2, 3, 4});
  CHECK(matmul.work == 48);
  const KernelPoint attention = point_of("attention_backward", {2, 16, 4, 64}, cost);
  CHECK(attention.position == std::vector<double>{8, 16, 64});
  const KernelPoint add = point_of("add", {30}, cost);
  CHECK(add.position == std::vector<double>{120});
  CHECK(add.work == 120);
}

}  // namespace llmtrain::plan
