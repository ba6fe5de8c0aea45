#include "kernels/attention.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr std::int64_t kPositions = 11;

std::vector<std::int32_t> positions(std::int64_t rows) {
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < rows; ++i) {
    result.push_back(static_cast<std::int32_t>(i * 7 % kPositions));
  }
  return result;
}

}  // namespace

TEST_CASE("rotary embeddings have the reference's bits") {
  struct Case {
    std::int64_t rows, heads, head_dim, rotary_dim, gap;
  };
  for (const Case& c :
       {Case{5, 3, 64, 64, 0}, Case{9, 4, 32, 32, 16}, Case{7, 5, 64, 32, 8}, Case{7, 2, 40, 24, 0},
        Case{3, 1, 6, 2, 3}, Case{70, 9, 16, 16, 0}, Case{0, 2, 16, 16, 0}}) {
    for (const DType dtype : kTypes) {
      for (const bool inverse : {false, true}) {
        CAPTURE(c.head_dim);
        CAPTURE(c.rows);
        compare(
            [&](Machine& m) {
              const Shape shape{c.rows, c.heads * c.head_dim};
              const Tensor x = m.operand("x", shape, c.gap), y = m.output(shape, c.gap + 16);
              const Tensor cosine = m.wide_operand("c", {kPositions, c.rotary_dim / 2});
              const Tensor sine = m.wide_operand("s", {kPositions, c.rotary_dim / 2});
              Rope rope{.x = x,
                        .y = y,
                        .cosine = cosine,
                        .sine = sine,
                        .position = m.integers(positions(c.rows)),
                        .head_dim = c.head_dim,
                        .rotary_dim = c.rotary_dim,
                        .inverse = inverse};
              const Tensor position = m.integers(positions(c.rows));
              rope.position = position;
              m.run(rope);
              rope.y = x;
              m.run(rope);
              return outputs(m, y, x);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("a position without a row in the tables becomes NaN and nothing else does") {
  Machine m(Place::gpu, DType::bf16, DType::bf16);
  const Tensor x = m.operand("x", {3, 64}), y = m.output({3, 64});
  const Tensor cosine = m.wide_operand("c", {4, 16}), sine = m.wide_operand("s", {4, 16});
  const Tensor position = m.integers(std::vector<std::int32_t>{4, 3, -1});
  m.run(Rope{.x = x,
             .y = y,
             .cosine = cosine,
             .sine = sine,
             .position = position,
             .head_dim = 32,
             .rotary_dim = 32});
  const Values values = m.read(y);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(std::isnan(values[i]) == (i / 64 != 1));
  }
}
