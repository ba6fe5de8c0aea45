#include "kernels/head_norm_rope.hpp"

#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr std::int64_t kPositions = 11;

struct Case {
  std::int64_t rows, q_heads, k_heads, head_dim, rotary_dim, gap;
  std::int64_t heads() const { return q_heads + k_heads; }
  Shape shape() const { return {rows, heads() * head_dim}; }
};
// Heads of every number of lanes, some of which are idle; heads that are read again; more heads
// than a thread turns; fewer than a row block, and several; rows at any address.
const Case kCases[] = {{5, 2, 1, 64, 64, 0}, {9, 5, 2, 128, 128, 16}, {70, 2, 1, 16, 16, 0},
                       {7, 3, 1, 96, 96, 8}, {3, 1, 1, 256, 256, 0},  {21, 4, 3, 32, 32, 3},
                       {7, 2, 1, 40, 24, 0}, {13, 6, 1, 6, 2, 3},     {0, 1, 1, 16, 16, 0},
                       {33, 8, 2, 64, 64, 0}};

std::vector<std::int32_t> positions(std::int64_t rows) {
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < rows; ++i) {
    result.push_back(static_cast<std::int32_t>(i * 7 % kPositions));
  }
  return result;
}

struct Tables {
  Tensor cosine, sine, position;
  Tables(Machine& m, const Case& c)
      : cosine(m.wide_operand("c", {kPositions, c.rotary_dim / 2})),
        sine(m.wide_operand("s", {kPositions, c.rotary_dim / 2})),
        position(m.integers(positions(c.rows))) {}
  NormedHeads heads(const Case& c) const {
    return {.q_heads = c.q_heads,
            .head_dim = c.head_dim,
            .rotary_dim = c.rotary_dim,
            .cosine = cosine,
            .sine = sine,
            .position = position};
  }
};

}  // namespace

TEST_CASE("norms of heads with rotary embeddings, and their gradients") {
  for (const Case& c : kCases) {
    for (const DType dtype : kTypes) {
      for (const bool wide_weight : {false, true}) {
        CAPTURE(c.head_dim);
        CAPTURE(c.rows);
        compare(
            [&](Machine& m) {
              const Tables tables(m, c);
              const DType type = wide_weight ? m.or_double(DType::f32) : m.compute();
              const Tensor q = m.normals("q", {c.head_dim}, type, m.operand_type());
              const Tensor k = m.normals("k", {c.head_dim}, type, m.operand_type());
              const Tensor x = m.operand("x", c.shape(), c.gap);
              const Tensor y = m.output(c.shape(), 2 * c.gap);
              const Tensor rstd = m.empty({c.rows * c.heads()}, m.wide());
              m.run(HeadNormRope{.heads = tables.heads(c),
                                 .x = x,
                                 .q_weight = q,
                                 .k_weight = k,
                                 .y = y,
                                 .rstd = rstd});
              const Tensor dy = m.operand("dy", c.shape(), c.gap);
              const Tensor dx = m.output(c.shape(), 3 * c.gap);
              const Tensor given = m.wide_operand("rstd", {c.rows * c.heads()});
              const Tensor dq = m.wide_operand("dq", {c.head_dim});
              const Tensor dk = m.wide_operand("dk", {c.head_dim});
              HeadNormRopeBackward backward{.heads = tables.heads(c),
                                            .dy = dy,
                                            .x = x,
                                            .q_weight = q,
                                            .k_weight = k,
                                            .rstd = given,
                                            .dx = dx,
                                            .dq_weight = dq,
                                            .dk_weight = dk};
              m.run(backward);
              backward.dx = dy;
              m.run(backward);
              return outputs(m, y, rstd, dx, dy);
            },
            dtype, {.times_reference = 3, .floor = 6});
      }
    }
  }
}

TEST_CASE("the weight gradients of norms with rotary embeddings have the reference's bits") {
  for (const Case& c : kCases) {
    for (const DType dtype : kTypes) {
      CAPTURE(c.head_dim);
      CAPTURE(c.rows);
      compare(
          [&](Machine& m) {
            const Tables tables(m, c);
            const Tensor dq = m.wide_operand("dq", {c.head_dim});
            const Tensor dk = m.wide_operand("dk", {c.head_dim});
            const Tensor dy = m.operand("dy", c.shape(), c.gap), x = m.operand("x", c.shape());
            const Tensor weight = m.operand("w", {c.head_dim});
            const Tensor rstd = m.wide_operand("rstd", {c.rows * c.heads()});
            m.run(HeadNormRopeBackward{.heads = tables.heads(c),
                                       .dy = dy,
                                       .x = x,
                                       .q_weight = weight,
                                       .k_weight = weight,
                                       .rstd = rstd,
                                       .dx = dy,
                                       .dq_weight = dq,
                                       .dk_weight = dk});
            return outputs(m, dq, dk);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("a head whose position has no row in the tables becomes NaN, and no other") {
  Machine m(Place::gpu, DType::bf16, DType::bf16);
  const Case c{3, 2, 1, 32, 32, 0};
  const Tensor x = m.operand("x", c.shape()), y = m.output(c.shape());
  const Tensor weight = m.operand("w", {32}), rstd = m.empty({9}, DType::f32);
  const Tensor cosine = m.wide_operand("c", {4, 16}), sine = m.wide_operand("s", {4, 16});
  const Tensor position = m.integers(std::vector<std::int32_t>{4, 3, -1});
  m.run(HeadNormRope{.heads = {.q_heads = 2,
                               .head_dim = 32,
                               .rotary_dim = 32,
                               .cosine = cosine,
                               .sine = sine,
                               .position = position},
                     .x = x,
                     .q_weight = weight,
                     .k_weight = weight,
                     .y = y,
                     .rstd = rstd});
  const Values values = m.read(y);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(values[i]) == (i / 96 != 1));
}
