#include "kernels/census.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;

namespace {

struct Taken {
  Tensor counts, powers, amax, scratch;
  explicit Taken(Machine& m)
      : counts(m.of(Values(Census::kBins, 0.0), {Census::kBins}, DType::f64)),
        powers(m.of(Values(Census::kPowers, 0.0), {Census::kPowers}, DType::f64)),
        amax(m.of({0.0}, {1}, DType::f64)),
        scratch(m.empty({Census::kParts, Census::kColumns}, DType::f64)) {}
  void add(Machine& m, const Tensor& x) const {
    m.run(Census{.x = x, .counts = counts, .powers = powers, .amax = amax, .scratch = scratch});
  }
  double count(std::int64_t bin) const { return counts.view().as<double>()[bin]; }
};

std::int64_t bin_of(double x) {
  return Census::bin_of(std::bit_cast<std::uint32_t>(static_cast<float>(x)));
}

}  // namespace

TEST_CASE("a census counts magnitudes by quarters of octaves and sums powers of what is finite") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Values x{0.0,  -0.0,  1,  -1.2, 1.25, -1.5, 2, std::ldexp(1, -128), std::ldexp(1, -129),
                 kInf, -kInf, NAN};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine m(*table, dtype, dtype, 2);
      const Taken taken(m);
      taken.add(m, m.of(x, {3, 4}, dtype, 2));
      CHECK(taken.count(0) == 3);  // both zeros, and 2^-129
      CHECK(taken.count(1) == 1);
      CHECK(taken.count(127 * 4) == 2);
      CHECK(taken.count(127 * 4 + 1) == 1);
      CHECK(taken.count(127 * 4 + 2) == 1);
      CHECK(taken.count(128 * 4) == 1);
      double not_finite = 0, all = 0;
      for (std::int64_t bin = 0; bin < Census::kBins; ++bin) all += taken.count(bin);
      for (auto bin = Census::kNotFinite; bin < Census::kBins; ++bin)
        not_finite += taken.count(bin);
      CHECK(all == 12);
      CHECK(not_finite == 3);
      for (int k = 0; k < Census::kPowers; ++k) {
        double sum = 0;
        for (const double value :
             {1.0, dtype == DType::f32 ? -double{1.2f} : -1.2, 1.25, -1.5, 2.0}) {
          sum += std::pow(value, k + 1);
        }
        CHECK(taken.powers.view().as<double>()[k] == doctest::Approx(sum).epsilon(1e-14));
      }
      CHECK(*taken.amax.view().as<double>() == 2);

      taken.add(m, m.of({-3}, {1}, dtype));
      CHECK(taken.count(128 * 4 + 2) == 1);
      CHECK(taken.count(127 * 4) == 2);
      CHECK(*taken.amax.view().as<double>() == 3);
    }
  }
}

TEST_CASE("bins of a census follow one another without a gap, from nothing to infinity") {
  CHECK(Census::least_of_bin(0) == 0);
  CHECK(Census::least_of_bin(127 * 4 + 3) == 1.75);
  CHECK(std::isinf(Census::least_of_bin(Census::kNotFinite)));
  for (std::int64_t bin = 1; bin <= Census::kNotFinite; ++bin) {
    const auto least = static_cast<float>(Census::least_of_bin(bin));
    CHECK(bin_of(least) == bin);
    CHECK(bin_of(-least) == bin);
    CHECK(bin_of(std::nextafter(least, 0.0f)) == bin - 1);
  }
  CHECK(bin_of(NAN) >= Census::kNotFinite);
}

TEST_CASE("parts of a census are all of it, and none is small unless all is") {
  for (const std::int64_t numel : {1, 4095, 4096, 4097, 600'000, 123'456'789}) {
    const std::int64_t parts = Census::parts(numel);
    CHECK(Census::first_of_part(0, numel) == 0);
    CHECK(Census::first_of_part(parts, numel) == numel);
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t count =
          Census::first_of_part(p + 1, numel) - Census::first_of_part(p, numel);
      CHECK(count >= std::min<std::int64_t>(numel, 2048));
    }
  }
}

TEST_CASE("the fast census is the reference's, whatever the threads") {
  struct Case {
    Shape shape;
    std::int64_t gap;
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const Case& c :
         {Case{{1, 1}, 0}, Case{{7, 13}, 3}, Case{{1, 4097}, 0}, Case{{999, 601}, 5}}) {
      CAPTURE(to_string(c.shape));
      const auto census = [&](Machine& m) {
        const Taken taken(m);
        for (const char* name : {"x", "y"}) taken.add(m, m.operand(name, c.shape, c.gap));
        return trial::outputs(taken.counts, taken.powers, taken.amax);
      };
      trial::compare(census, dtype, {.reference = 64, .fast = 2, .floor = 64});
      const auto plain = trial::run(census, cpu_reference_table(), dtype, dtype, 1);
      const auto fast = trial::run(census, cpu_table(), dtype, dtype, 3);
      CHECK(trial::same_bits(fast[0].values, plain[0].values));
      CHECK(trial::same_bits(fast[2].values, plain[2].values));
    }
  }
}

TEST_CASE("a census of nothing adds nothing; operands of other sizes are refused") {
  Machine m(cpu_table(), DType::f32, DType::f32, 1);
  const Taken taken(m);
  taken.add(m, m.empty({0, 8}, DType::f32));
  CHECK(*taken.amax.view().as<double>() == 0);
  Census op{.x = m.empty({2, 8}, DType::f32),
            .counts = taken.counts,
            .powers = taken.powers,
            .amax = taken.amax,
            .scratch = taken.counts};
  CHECK_THROWS_AS(m.run(op), InternalError);
}

}  // namespace llmtrain::kernels
