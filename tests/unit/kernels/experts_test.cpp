#include "kernels/experts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

#include "kernels/expert_slots.hpp"
#include "kernels/matmul.hpp"
#include "kernels/scale_rows.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

/// Choices of `experts`, of which some are none.
std::vector<std::int32_t> some_choices(std::int64_t n, std::int64_t experts, bool with_none) {
  const PhiloxKey key = philox_key(1, "test", "choices");
  std::vector<std::int32_t> choices;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto below = static_cast<std::uint32_t>(experts + with_none);
    const auto e =
        static_cast<std::int32_t>(philox_below(key, 0, static_cast<std::uint64_t>(i), below));
    choices.push_back(e == experts ? -1 : e);
  }
  return choices;
}

struct Sorted {
  Tensor offsets, source, place;
};

Sorted sort(Machine& machine, const std::vector<std::int32_t>& choices, std::int64_t experts) {
  const auto n = static_cast<std::int64_t>(choices.size());
  Sorted sorted{machine.empty({experts + 1}, DType::i32), machine.empty({n}, DType::i32),
                machine.empty({n}, DType::i32)};
  machine.run(GroupByExpert{.expert = machine.integers(choices),
                            .offsets = sorted.offsets,
                            .source = sorted.source,
                            .place = sorted.place});
  return sorted;
}

struct Layer {
  std::int64_t experts, out, in;
};

/// Output, input gradient (alone and added) and weight gradient of a layer of experts.
std::vector<trial::Output> products(Machine& machine, const std::vector<std::int32_t>& choices,
                                    const Layer& layer) {
  const auto n = static_cast<std::int64_t>(choices.size());
  const Sorted sorted = sort(machine, choices, layer.experts);
  const Tensor w = machine.operand("w", {layer.experts, layer.out, layer.in});
  const Tensor x = machine.operand("x", {n, layer.in}, 3);
  const Tensor dy = machine.operand("dy", {n, layer.out}, 5);
  const Tensor y = machine.output({n, layer.out}, 2);
  const Tensor dx = machine.output({n, layer.in});
  const Tensor added = machine.operand("added", {n, layer.in}, 1);
  const Tensor dw = machine.wide("dw", {layer.experts, layer.out, layer.in});
  const auto run = [&](const Tensor& a, const Tensor& b, const Tensor& c, GroupedProduct product,
                       bool accumulate) {
    machine.run(GroupedMatmul{.a = a,
                              .b = b,
                              .c = c,
                              .offsets = sorted.offsets,
                              .product = product,
                              .accumulate = accumulate});
  };
  run(x, w, y, GroupedProduct::forward, false);
  run(dy, w, dx, GroupedProduct::input_grad, false);
  run(dy, w, added, GroupedProduct::input_grad, true);
  run(dy, x, dw, GroupedProduct::weight_grad, false);
  return trial::outputs(y, dx, added, dw);
}

}  // namespace

TEST_CASE("choices are sorted by expert in their order, those of nobody last") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Sorted sorted = sort(machine, {2, 0, -1, 2, 1, 0}, 4);
  CHECK(values_of(sorted.offsets) == Values{0, 2, 3, 5, 5});
  CHECK(values_of(sorted.source) == Values{1, 5, 4, 0, 3, 2});
  CHECK(values_of(sorted.place) == Values{3, 0, 5, 4, 2, 1});
  CHECK_THROWS_AS(sort(machine, {4}, 4), InternalError);
  CHECK(values_of(sort(machine, {}, 2).offsets) == Values{0, 0, 0});
}

TEST_CASE("rows go to their choices' places and come back as sums") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Sorted sorted = sort(machine, {1, 0, -1, 1}, 2);  // two rows with two choices each
  const Tensor x = machine.of({1, 2, 3, 10, 20, 30}, {2, 3}, DType::f32);
  const Tensor y = machine.output({4, 3});
  machine.run(GatherRows{.x = x, .source = sorted.source, .offsets = sorted.offsets, .y = y});
  CHECK(values_of(y) == Values{1, 2, 3, 1, 2, 3, 10, 20, 30, 0, 0, 0});
  const Tensor back = machine.output({2, 3});
  machine.run(CombineRows{.x = y, .place = sorted.place, .y = back});
  CHECK(values_of(back) == Values{2, 4, 6, 10, 20, 30});
}

TEST_CASE("gathering and combining agree with the reference in every type") {
  for (const auto& [rows, top_k, cols] :
       {std::array<std::int64_t, 3>{0, 2, 4}, {1, 1, 1}, {7, 3, 33}, {70, 4, 300}}) {
    CAPTURE(rows);
    const auto choices = some_choices(rows * top_k, 5, true);
    const trial::Trial trial = [&](Machine& machine) {
      const Sorted sorted = sort(machine, choices, 5);
      const Tensor y = machine.output({rows * top_k, cols}), sum = machine.output({rows, cols});
      machine.run(GatherRows{.x = machine.operand("x", {rows, cols}),
                             .source = sorted.source,
                             .offsets = sorted.offsets,
                             .y = y});
      machine.run(CombineRows{
          .x = machine.operand("h", {rows * top_k, cols}), .place = sorted.place, .y = sum});
      return trial::outputs(y, sum);
    };
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      trial::Limits limits;
      limits.same_bits_as_reference = true;
      trial::compare(trial, dtype, limits);
    }
  }
}

TEST_CASE("sorted rows get slots of their experts' ranks, as many on each") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  // Experts 0 and 1 of one rank have 0 and 2 rows, 2 and 3 of the other one 3 and 1.
  const Sorted sorted = sort(machine, {2, -1, 1, 3, 2, 1, 2}, 4);
  const auto assigned = [&](std::int64_t slots, double before) {
    const Tensor source = machine.empty({2 * slots}, DType::i32),
                 expert = machine.empty({2 * slots}, DType::i32);
    const Tensor place = machine.empty({7}, DType::i32);
    const Tensor needed = machine.of({before}, {1}, DType::f64);
    machine.run(AssignSlots{.offsets = sorted.offsets,
                            .source = source,
                            .expert = expert,
                            .place = place,
                            .needed = needed,
                            .ranks = 2,
                            .even_rows = 2.5});
    return std::array{values_of(source), values_of(expert), values_of(place), values_of(needed)};
  };
  CHECK(assigned(5, 1) == std::array{Values{0, 1, -1, -1, -1, 2, 3, 4, 5, -1},
                                     Values{1, 1, -1, -1, -1, 0, 0, 0, 1, -1},
                                     Values{0, 1, 5, 6, 7, 8, -1}, Values{1}});
  CHECK(assigned(3, 1) == std::array{Values{0, 1, -1, 2, 3, 4}, Values{1, 1, -1, 0, 0, 0},
                                     Values{0, 1, 3, 4, 5, -2, -1}, Values{1.6}});
  CHECK(assigned(0, 2)[2] == Values{-2, -2, -2, -2, -2, -2, -1});
  CHECK(assigned(0, 2)[3] == Values{2});
}

TEST_CASE("rows are taken from where they are said to lie, zeros and NaN where there are none") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor x = machine.of({1, 2, 3, 10, 20, 30}, {2, 3}, DType::f32),
               y = machine.output({3, 3});
  const Tensor from = machine.empty({3}, DType::i32);
  const auto take = [&](std::array<std::int32_t, 3> rows) {
    std::ranges::copy(rows, from.view().as<std::int32_t>());
    machine.run(TakeRows{.x = x, .from = from, .y = y});
    return values_of(y);
  };
  CHECK(take({1, -1, 0}) == Values{10, 20, 30, 0, 0, 0, 1, 2, 3});
  const Values lost = take({-2, 1, 1});
  CHECK(std::isnan(lost[0]));
  CHECK(std::isnan(lost[2]));
  CHECK(lost[3] == 10);
}

TEST_CASE("products of experts agree with the reference, whoever has how many rows") {
  constexpr Layer kLayers[] = {{1, 1, 1}, {3, 5, 7}, {4, 33, 40}, {2, 800, 50}, {3, 40, 800}};
  for (const Layer& layer : kLayers) {
    for (const std::int64_t n : {0, 1, 13, 130}) {
      for (const bool one_has_all : {false, true}) {
        CAPTURE(layer.out);
        CAPTURE(n);
        const auto choices = one_has_all ? std::vector<std::int32_t>(static_cast<std::size_t>(n), 0)
                                         : some_choices(n, layer.experts, true);
        const trial::Trial trial = [&](Machine& machine) {
          return products(machine, choices, layer);
        };
        trial::Limits limits;
        limits.reference = 40;
        limits.floor = 8;
        for (const DType dtype : {DType::f32, DType::bf16}) trial::compare(trial, dtype, limits);
      }
    }
  }
}

TEST_CASE("experts multiply as products of their rows alone") {
  constexpr Layer kLayer{3, 34, 50};
  const auto choices = some_choices(90, kLayer.experts, true);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine machine(cpu_table(), dtype, dtype, 2);
    const Sorted sorted = sort(machine, choices, kLayer.experts);
    const Tensor w = machine.operand("w", {kLayer.experts, kLayer.out, kLayer.in});
    const Tensor x = machine.operand("x", {90, kLayer.in});
    const Tensor y = machine.output({90, kLayer.out}), expected = machine.output({90, kLayer.out});
    machine.run(GroupedMatmul{.a = x, .b = w, .c = y, .offsets = sorted.offsets});
    const Values offsets = values_of(sorted.offsets);
    trial::set_values(expected, Values(static_cast<std::size_t>(expected.numel()), 0));
    for (std::int64_t e = 0; e < kLayer.experts; ++e) {
      const auto begin = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(e)]);
      const auto end = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(e) + 1]);
      machine.run(Matmul{.a = x.row_range(begin, end - begin),
                         .b = w.row_range(e * kLayer.out, kLayer.out),
                         .c = expected.row_range(begin, end - begin),
                         .bias = {},
                         .transpose_b = true});
    }
    CHECK(trial::same_bits(values_of(y), values_of(expected)));
  }
}

TEST_CASE("the memory of products of experts is enough for any of them") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [out, in] : {std::pair<std::int64_t, std::int64_t>{5, 7}, {800, 1600}}) {
      Machine machine(cpu_table(), dtype, dtype, 1);
      constexpr std::int64_t kRows = 3000;
      const Tensor w = machine.operand("w", {1, out, in}), x = machine.operand("x", {kRows, in});
      const Tensor dy = machine.operand("dy", {kRows, out}), dw = machine.wide("dw", {1, out, in});
      const Tensor offsets = machine.integers<std::int32_t>({0, 0});
      const GroupedMatmul kernels[] = {
          {.a = x, .b = w, .c = dy, .offsets = offsets},
          {.a = dy, .b = w, .c = x, .offsets = offsets, .product = GroupedProduct::input_grad},
          {.a = dy, .b = x, .c = dw, .offsets = offsets, .product = GroupedProduct::weight_grad}};
      for (const GroupedMatmul& kernel : kernels) {
        for (const int threads : {1, 2, 3, 8}) {
          const std::uint64_t bound = kernel.workspace_bytes(threads);
          std::uint64_t most = 0;
          for (std::int64_t rows = 1; rows <= kRows; ++rows) {
            most = std::max(most, kernel.of_expert(0, 0, rows).workspace_bytes(threads));
          }
          CHECK(most <= bound);
        }
      }
    }
  }
}

TEST_CASE("rows are scaled, and their numbers learn from both sides") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor x = machine.of({1, 2, 3, 4}, {2, 2}, DType::f32);
  const Tensor weight = machine.of({10, 0.5}, {2, 1}, DType::f32);
  const Tensor y = machine.output({2, 2}), dx = machine.output({2, 2});
  const Tensor dweight = machine.empty({2, 1}, DType::f32);
  machine.run(ScaleRows{.x = x, .weight = weight, .y = y});
  CHECK(values_of(y) == Values{10, 20, 1.5, 2});
  machine.run(ScaleRowsBackward{.x = x,
                                .weight = weight,
                                .dy = machine.of({1, 1, 2, -1}, {2, 2}, DType::f32),
                                .dx = dx,
                                .dweight = dweight});
  CHECK(values_of(dx) == Values{10, 10, 1, -0.5});
  CHECK(values_of(dweight) == Values{3, 2});
}

TEST_CASE("scaled rows agree with the reference") {
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {1, 1}, {40, 77}}) {
    const trial::Trial trial = [&](Machine& machine) {
      const Tensor x = machine.operand("x", {rows, cols}, 3);
      const Tensor weight = machine.wide("weight", {rows});
      const Tensor y = machine.output({rows, cols}, 1), dx = machine.output({rows, cols}, 2);
      const Tensor dweight = machine.empty({rows}, machine.sink());
      machine.run(ScaleRows{.x = x, .weight = weight, .y = y});
      machine.run(ScaleRowsBackward{.x = x,
                                    .weight = weight,
                                    .dy = machine.operand("dy", {rows, cols}, 4),
                                    .dx = dx,
                                    .dweight = dweight});
      return trial::outputs(y, dx, dweight);
    };
    trial::Limits limits;
    limits.reference = 40;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      trial::compare(trial, dtype, limits);
    }
  }
}

}  // namespace llmtrain::kernels
