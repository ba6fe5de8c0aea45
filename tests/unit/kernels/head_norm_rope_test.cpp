#include "kernels/head_norm_rope.hpp"

#include <doctest/doctest.h>

#include "kernels/attention.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;

namespace {

constexpr std::int64_t kPositions = 13;
constexpr double kEps = 0.25;

struct Case {
  std::int64_t rows, q_heads, k_heads, head_dim, rotary_dim;
  std::int64_t heads() const { return q_heads + k_heads; }
  Shape shape() const { return {rows, heads() * head_dim}; }
};
// Several row blocks of q, of k, of both, and none; a part of a head that does not turn.
constexpr Case kCases[] = {{0, 1, 1, 4, 4},   {1, 1, 1, 2, 2},     {5, 2, 1, 14, 14},
                           {9, 4, 2, 64, 64}, {33, 3, 2, 96, 96},  {66, 1, 1, 16, 6},
                           {7, 3, 2, 40, 24}, {150, 2, 1, 10, 10}, {3, 2, 2, 256, 256}};

struct Tables {
  Tensor cosine, sine, position;
  Tables(Machine& machine, const Case& c)
      : cosine(machine.wide("cosine", {kPositions, c.rotary_dim / 2})),
        sine(machine.wide("sine", {kPositions, c.rotary_dim / 2})),
        position(machine.integers([&] {
          std::vector<std::int32_t> positions;
          for (std::int64_t i = 0; i < c.rows; ++i) {
            positions.push_back(static_cast<std::int32_t>(i * 5 % kPositions));
          }
          return positions;
        }())) {}
  NormedHeads heads(const Case& c) const {
    return {.q_heads = c.q_heads,
            .head_dim = c.head_dim,
            .rotary_dim = c.rotary_dim,
            .cosine = cosine,
            .sine = sine,
            .position = position};
  }
};

Tensor weight_of(Machine& machine, std::string_view name, const Case& c, bool wide) {
  return wide ? machine.wide(name, {c.head_dim}) : machine.operand(name, {c.head_dim});
}

}  // namespace

TEST_CASE("heads are normalised and turned, and back, as the reference says, for any threads") {
  for (const Case& c : kCases) {
    for (const bool wide_weight : {false, true}) {
      CAPTURE(c.rows);
      CAPTURE(c.head_dim);
      const trial::Trial trial = [&](Machine& machine) {
        const Tables tables(machine, c);
        const Tensor x = machine.operand("x", c.shape(), 3);
        const Tensor y = machine.output(c.shape(), 5);
        const Tensor q_weight = weight_of(machine, "q", c, wide_weight);
        const Tensor k_weight = weight_of(machine, "k", c, wide_weight);
        const Tensor rstd = machine.empty({c.rows * c.heads()}, machine.sink());
        machine.run(HeadNormRope{.heads = tables.heads(c),
                                 .x = x,
                                 .q_weight = q_weight,
                                 .k_weight = k_weight,
                                 .y = y,
                                 .rstd = rstd,
                                 .eps = kEps});
        const Tensor dy = machine.operand("dy", c.shape(), 2);
        const Tensor dx = machine.output(c.shape(), 4);
        const Tensor given = machine.wide("rstd", {c.rows * c.heads()});
        HeadNormRopeBackward backward{.heads = tables.heads(c),
                                      .dy = dy,
                                      .x = x,
                                      .q_weight = q_weight,
                                      .k_weight = k_weight,
                                      .rstd = given,
                                      .dx = dx,
                                      .dq_weight = machine.wide("dq", {c.head_dim}),
                                      .dk_weight = machine.wide("dk", {c.head_dim})};
        const Tensor dq = machine.wide("dq", {c.head_dim}), dk = machine.wide("dk", {c.head_dim});
        backward.dq_weight = dq;
        backward.dk_weight = dk;
        machine.run(backward);
        backward.dx = dy;  // in place
        machine.run(backward);
        return trial::outputs(y, rstd, dx, dy, dq, dk);
      };
      trial::Limits limits;
      limits.reference = 100;
      limits.fast = 3;
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        trial::compare(trial, dtype, limits);
      }
    }
  }
}

TEST_CASE("the weight gradients of heads have the reference's bits") {
  for (const Case& c : kCases) {
    const trial::Trial trial = [&](Machine& machine) {
      const Tables tables(machine, c);
      const Tensor dq = machine.wide("dq", {c.head_dim}), dk = machine.wide("dk", {c.head_dim});
      const Tensor dy = machine.operand("dy", c.shape());
      machine.run(HeadNormRopeBackward{.heads = tables.heads(c),
                                       .dy = dy,
                                       .x = machine.operand("x", c.shape()),
                                       .q_weight = machine.operand("q", {c.head_dim}),
                                       .k_weight = machine.operand("k", {c.head_dim}),
                                       .rstd = machine.wide("rstd", {c.rows * c.heads()}),
                                       .dx = dy,
                                       .dq_weight = dq,
                                       .dk_weight = dk});
      return trial::outputs(dq, dk);
    };
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      trial::compare(trial, dtype, {.reference = 200, .same_bits_as_reference = true});
    }
  }
}

TEST_CASE("both kernels in one are those one after the other") {
  for (const Case& c : kCases) {
    if (c.rows == 0) continue;
    CAPTURE(c.head_dim);
    Machine machine(cpu_reference_table(), DType::f64, DType::f64, 1);
    const Tables tables(machine, c);
    const Tensor x = machine.operand("x", c.shape());
    const Tensor dy = machine.operand("dy", c.shape()), turned_back = machine.output(c.shape());
    const Tensor q_weight = machine.operand("q", {c.head_dim}),
                 k_weight = machine.operand("k", {c.head_dim});
    const Tensor y = machine.output(c.shape()), dx = machine.output(c.shape());
    const Tensor rstd = machine.empty({c.rows * c.heads()}, DType::f64);
    const Tensor dq = machine.wide("sink", {c.head_dim}), dk = machine.wide("sink", {c.head_dim});
    machine.run(HeadNormRope{.heads = tables.heads(c),
                             .x = x,
                             .q_weight = q_weight,
                             .k_weight = k_weight,
                             .y = y,
                             .rstd = rstd,
                             .eps = kEps});
    machine.run(HeadNormRopeBackward{.heads = tables.heads(c),
                                     .dy = dy,
                                     .x = x,
                                     .q_weight = q_weight,
                                     .k_weight = k_weight,
                                     .rstd = rstd,
                                     .dx = dx,
                                     .dq_weight = dq,
                                     .dk_weight = dk});
    Rope rope{.x = dy,
              .y = turned_back,
              .cosine = tables.cosine,
              .sine = tables.sine,
              .position = tables.position,
              .head_dim = c.head_dim,
              .rotary_dim = c.rotary_dim,
              .inverse = true};
    machine.run(rope);
    const Tensor expected = machine.output(c.shape()), expected_dx = machine.output(c.shape());
    for (const bool of_q : {true, false}) {
      const std::int64_t first = of_q ? 0 : c.q_heads, count = of_q ? c.q_heads : c.k_heads;
      const auto columns = [&](const Tensor& whole) {
        return whole.columns(first * c.head_dim, count * c.head_dim);
      };
      const Tensor& weight = of_q ? q_weight : k_weight;
      const Tensor part_rstd = machine.empty({c.rows * count}, DType::f64);
      const Tensor sink = machine.wide("sink", {c.head_dim});
      machine.run(NormForward{.x = columns(x),
                              .weight = weight,
                              .y = columns(expected),
                              .rstd = part_rstd,
                              .eps = kEps,
                              .head_dim = c.head_dim});
      machine.run(NormBackward{.dy = columns(turned_back),
                               .s = columns(x),
                               .weight = weight,
                               .rstd = part_rstd,
                               .dx = columns(expected_dx),
                               .dweight = sink,
                               .head_dim = c.head_dim});
      CHECK(trial::max_difference(trial::values_of(of_q ? dq : dk), trial::values_of(sink)) <
            1e-12);
    }
    rope.x = rope.y = expected;
    rope.inverse = false;
    machine.run(rope);
    CHECK(trial::max_difference(trial::values_of(y), trial::values_of(expected)) < 1e-13);
    CHECK(trial::max_difference(trial::values_of(dx), trial::values_of(expected_dx)) < 1e-12);
  }
}

TEST_CASE("norms with rotation check their operands, and their positions") {
  const Case c{3, 2, 1, 8, 8};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tables tables(machine, c);
    const Tensor x = machine.operand("x", c.shape()), y = machine.output(c.shape());
    const Tensor weight = machine.operand("w", {8}), rstd = machine.empty({9}, DType::f32);
    const HeadNormRope good{.heads = tables.heads(c),
                            .x = x,
                            .q_weight = weight,
                            .k_weight = weight,
                            .y = y,
                            .rstd = rstd};
    good.check();
    const auto refused = [&](auto&& change) {
      HeadNormRope bad = good;
      change(bad);
      CHECK_THROWS_AS(bad.check(), InternalError);
    };
    refused([](HeadNormRope& op) { op.heads.q_heads = 3; });  // none of k
    refused([](HeadNormRope& op) { op.heads.q_heads = 0; });
    refused([](HeadNormRope& op) { op.heads.head_dim = 7; });
    refused([](HeadNormRope& op) { op.heads.rotary_dim = 10; });
    refused([](HeadNormRope& op) { op.y = op.x; });
    refused([](HeadNormRope& op) { op.eps = -1; });
    refused([](HeadNormRope& op) { op.rstd.dtype = DType::bf16; });
    HeadNormRope beyond = good;
    const Tensor position =
        machine.integers(std::vector<std::int32_t>{0, static_cast<std::int32_t>(kPositions), 1});
    beyond.heads.position = position;
    CHECK_THROWS_WITH_AS(machine.run(beyond), doctest::Contains("row 1 has position 13"),
                         InternalError);
  }
}

}  // namespace llmtrain::kernels
