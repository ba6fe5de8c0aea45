#include "kernels/elementwise.hpp"

#include "kernels/activations.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

struct Case {
  Shape shape;
  std::int64_t gap;
};
// Packs of 16 bytes, odd sizes, rows that are aligned and rows that are not, nothing at all.
const Case kCases[] = {{{4, 64}, 0}, {{3, 37}, 0},     {{5, 48}, 16}, {{5, 48}, 6},
                       {{1, 1}, 0},  {{700, 1030}, 2}, {{0, 8}, 0}};

}  // namespace

TEST_CASE("sums, casts and fills have the reference's bits") {
  for (const Case& c : kCases) {
    CAPTURE(to_string(c.shape));
    for (const DType dtype : kTypes) {
      compare(
          [&](Machine& m) {
            const Tensor a = m.operand("a", c.shape, c.gap), b = m.operand("b", c.shape);
            const Tensor y = m.output(c.shape, c.gap), z = m.output(c.shape);
            m.run(Add{.a = a, .b = b, .y = y});
            m.run(Fill{.y = z, .value = 0.3});
            m.run(ScaleCast{.x = a, .y = b, .scale = 0.7, .accumulate = true});
            return outputs(m, y, z, b);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("casts between all types have the reference's bits") {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      CAPTURE(to_string(to));
      Values results[2];
      for (const Place place : {Place::reference, Place::gpu}) {
        Machine m(place, from, from);
        const Tensor x = m.operand("x", {9, 52}, 4), y = m.empty({9, 52}, to, 12);
        m.run(ScaleCast{.x = x, .y = y, .scale = 1.0 / 3});
        results[place == Place::gpu] = m.read(y);
      }
      CHECK(max_difference(results[0], results[1]) == 0);
    }
  }
}

TEST_CASE("normalize divides by the root of what another kernel wrote") {
  for (const DType dtype : kTypes) {
    compare(
        [&](Machine& m) {
          const Tensor x = m.operand("x", {7, 33});
          const Tensor y = m.output({7, 33}), z = m.output({7, 33});
          const Tensor square = m.of({6.25}, {1}, DType::f64), none = m.of({0}, {1}, DType::f64);
          m.run(Normalize{.x = x, .squared_norm = square, .y = y, .scale = 2});
          m.run(Normalize{.x = x, .squared_norm = none, .y = z, .eps = 0.5});
          return outputs(m, y, z);
        },
        dtype, {.same_bits = true});
  }
}

TEST_CASE("activation functions and their gradients, with and without a gate") {
  for (int id = 0; id < kNumActivations; ++id) {
    const auto activation = Activation(id);
    CAPTURE(to_string(activation));
    for (const Case& c : {kCases[0], kCases[1], kCases[2]}) {
      for (const DType dtype : kTypes) {
        compare(
            [&](Machine& m) {
              const Tensor x = m.operand("x", c.shape, c.gap), up = m.operand("up", c.shape, c.gap);
              const Tensor dy = m.operand("dy", c.shape);
              const Tensor y = m.output(c.shape), gated = m.output(c.shape, c.gap);
              const Tensor dx = m.output(c.shape), dx2 = m.output(c.shape), dup = m.output(c.shape);
              m.run(ActivationForward{.activation = activation, .x = x, .y = y});
              m.run(ActivationForward{.activation = activation, .x = x, .up = up, .y = gated});
              m.run(ActivationBackward{.activation = activation, .x = x, .dy = dy, .dx = dx});
              m.run(ActivationBackward{
                  .activation = activation, .x = x, .up = up, .dy = dy, .dx = dx2, .dup = dup});
              return outputs(m, y, gated, dx, dx2, dup);
            },
            // erf and tanh of a GPU are up to two units in the last place off, which are four
            // roundings, and a gate or a slope multiplies them.
            dtype, {.floor = 10});
      }
    }
  }
}
