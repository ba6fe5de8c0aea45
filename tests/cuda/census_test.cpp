#include "kernels/census.hpp"

#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("a census on the device has the reference's counts, and its sums but for rounding") {
  // One number, parts of unequal size, more parts than one, strided rows, nothing.
  struct Case {
    Shape shape;
    std::int64_t gap;
  };
  for (const Case& c : {Case{{1, 1}, 0}, Case{{63, 37}, 3}, Case{{70, 1032}, 8}, Case{{1, 8193}, 0},
                        Case{{0, 8}, 0}}) {
    CAPTURE(to_string(c.shape));
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const auto census = [&](Machine& m) {
        const Tensor counts = m.zeros({Census::kBins}, DType::f64);
        const Tensor powers = m.zeros({Census::kPowers}, DType::f64);
        const Tensor amax = m.zeros({1}, DType::f64);
        const Tensor scratch = m.empty({Census::kParts, Census::kColumns}, DType::f64);
        Values special{INFINITY, -INFINITY, NAN, 0.0, -0.0, 0x1p-20};
        for (const Tensor& x :
             {m.operand("x", c.shape, c.gap), m.of(special, {2, 3}, m.compute(), 1)}) {
          m.run(
              Census{.x = x, .counts = counts, .powers = powers, .amax = amax, .scratch = scratch});
        }
        auto all = outputs(m, counts, powers, amax);
        all[1].of_magnitude = static_cast<double>(c.shape.numel()) + 1;
        return all;
      };
      compare(census, dtype, {.times_reference = 2, .floor = 64});
      const auto on = [&](Place place) {
        Machine machine(place, dtype, dtype);
        return census(machine);
      };
      const auto plain = on(Place::reference), found = on(Place::gpu);
      CHECK(max_difference(found[0].values, plain[0].values) == 0);
      CHECK(max_difference(found[2].values, plain[2].values) == 0);
    }
  }
}
