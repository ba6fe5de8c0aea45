#include "kernels/elementwise.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

TEST_CASE("dropout keeps what the reference keeps, with its bits") {
  struct Case {
    Shape shape;
    std::int64_t gap;
  };
  for (const Case& c : {Case{{5, 64}, 0}, Case{{6, 48}, 16}, Case{{6, 44}, 4}, Case{{4, 37}, 0},
                        Case{{9, 6}, 2}, Case{{1, 1}, 0}, Case{{0, 8}, 0}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const double p : {0.0, 0.1, 0.75, 1 - 0x1p-53}) {
        CAPTURE(to_string(c.shape));
        CAPTURE(p);
        compare(
            [&](Machine& m) {
              const Tensor x = m.operand("x", c.shape, c.gap), y = m.output(c.shape, c.gap + 8);
              std::vector<std::int64_t> ids;
              for (std::int64_t i = 0; i < c.shape.rows(); ++i) {
                ids.push_back((std::int64_t{1} << 33) + 5 * i + 1);
              }
              const Tensor row_id = m.integers(ids);
              Dropout dropout{.x = x,
                              .row_id = row_id,
                              .y = y,
                              .p = p,
                              .key = philox_key(3, "dropout", "here"),
                              .step = (std::uint64_t{1} << 40) + 9};
              m.run(dropout);
              dropout.y = x;
              m.run(dropout);
              return outputs(m, y, x);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("dropout decides a word next to p as the reference does") {
  // p at, just below and just above the uniform of an element.
  const PhiloxKey key = philox_key(3, "dropout", "edge");
  for (std::uint64_t element = 0; element < 8; ++element) {
    const double uniform = unit_interval(philox_word(key, 2, element));
    for (const double p : {uniform, std::nextafter(uniform, 0.0), std::nextafter(uniform, 1.0)}) {
      compare(
          [&](Machine& m) {
            const Tensor x = m.operand("x", {1, 8}), y = m.output({1, 8});
            const Tensor row_id = m.integers(std::vector<std::int64_t>{0});
            m.run(Dropout{.x = x, .row_id = row_id, .y = y, .p = p, .key = key, .step = 2});
            return outputs(m, y);
          },
          DType::bf16, {.same_bits = true});
    }
  }
}
