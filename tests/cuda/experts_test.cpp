#include "kernels/experts.hpp"

#include "kernels/expert_slots.hpp"
#include "kernels/matmul.hpp"
#include "kernels/scale_rows.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// Choices of `experts`, of which some are none. The first ones are taken more often, the last one
/// never.
std::vector<std::int32_t> some_choices(std::int64_t n, std::int64_t experts) {
  const PhiloxKey key = philox_key(test_seed(), "test", "choices");
  std::uint64_t word = 0;
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int32_t>(philox_below(key, 0, word++, static_cast<std::uint32_t>(end)));
  };
  std::vector<std::int32_t> choices;
  const std::int64_t taken = std::max<std::int64_t>(1, experts - 1);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t e = std::min(below(taken), below(taken));
    choices.push_back(below(10) == 0 ? -1 : e);
  }
  return choices;
}

struct Sorted {
  Tensor expert, offsets, source, place;

  Sorted(Machine& m, const std::vector<std::int32_t>& choices, std::int64_t experts)
      : expert(m.integers(choices)),
        offsets(m.empty_integers({experts + 1})),
        source(m.empty_integers({std::ssize(choices)})),
        place(m.empty_integers({std::ssize(choices)})) {
    m.run(GroupByExpert{.expert = expert, .offsets = offsets, .source = source, .place = place});
  }
};

}  // namespace

TEST_CASE("choices are sorted on a GPU as on the CPU, whatever their number") {
  for (const auto& [n, experts] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                   {1, 1},
                                   {6, 4},
                                   {1024, 3},
                                   {1025, 128},
                                   {3000, 255},
                                   {20000, 7},
                                   {777, 300}}) {
    CAPTURE(n);
    CAPTURE(experts);
    compare(
        [&](Machine& m) {
          const Sorted sorted(m, some_choices(n, experts), experts);
          return outputs(m, sorted.offsets, sorted.source, sorted.place);
        },
        DType::f32, {.same_bits = true});
  }
}

TEST_CASE("choices of experts that there are not are nobody's on a GPU") {
  Machine m(Place::gpu, DType::f32, DType::f32);
  const Sorted sorted(m, {1, 9, -7, 0, 2}, 2);
  CHECK(m.read(sorted.offsets) == Values{0, 1, 2});
  CHECK(m.read(sorted.source) == Values{3, 0, 1, 2, 4});
}

TEST_CASE("rows go to their experts and come back with the reference's bits") {
  for (const auto& [rows, top_k, cols] :
       {std::array<std::int64_t, 3>{0, 2, 4}, {1, 1, 1}, {7, 3, 33}, {40, 4, 64}, {300, 8, 24}}) {
    CAPTURE(rows);
    CAPTURE(cols);
    for (const DType dtype : kTypes) {
      compare(
          [&](Machine& m) {
            const Sorted sorted(m, some_choices(rows * top_k, 5), 5);
            const Tensor x = m.operand("x", {rows, cols}), h = m.operand("h", {rows * top_k, cols});
            const Tensor y = m.output({rows * top_k, cols}), sum = m.output({rows, cols});
            m.run(GatherRows{.x = x, .source = sorted.source, .offsets = sorted.offsets, .y = y});
            m.run(CombineRows{.x = h, .place = sorted.place, .y = sum});
            return outputs(m, y, sum);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("rows get slots on a GPU as on the CPU, and are taken from there with its bits") {
  for (const auto& [n, experts, ranks, slots] : {std::array<std::int64_t, 4>{0, 2, 2, 3},
                                                 {1, 2, 1, 1},
                                                 {60, 6, 3, 25},
                                                 {60, 6, 3, 9},
                                                 {500, 64, 8, 70},
                                                 {500, 64, 64, 0},
                                                 {3000, 12, 4, 900}}) {
    const double before = n == 60 ? 1e6 : 0.5;  // of an earlier micro-batch
    CAPTURE(n);
    CAPTURE(ranks);
    CAPTURE(slots);
    for (const DType dtype : kTypes) {
      compare(
          [&](Machine& m) {
            const Sorted sorted(m, some_choices(n, experts), experts);
            const Tensor source = m.empty_integers({ranks * slots}),
                         expert = m.empty_integers({ranks * slots}), place = m.empty_integers({n});
            const Tensor needed = m.of({before}, {1}, DType::f64);
            m.run(AssignSlots{.offsets = sorted.offsets,
                              .source = source,
                              .expert = expert,
                              .place = place,
                              .needed = needed,
                              .ranks = ranks,
                              .even_rows = 7});
            const Tensor x = m.operand("x", {n, 24}), odd = m.operand("odd", {ranks * slots, 7});
            const Tensor go = m.output({ranks * slots, 24}), back = m.output({n, 7});
            m.run(TakeRows{.x = x, .from = source, .y = go});
            m.run(TakeRows{.x = odd, .from = place, .y = back});
            return outputs(m, source, expert, place, needed, go, back);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("rows that nobody chose are zeros, whatever lies in their source") {
  Machine m(Place::gpu, DType::bf16, DType::bf16);
  const Sorted sorted(m, {-1, 0, -1, 0}, 2);
  const Tensor x = m.of({NAN, 3}, {2, 1}, DType::bf16), y = m.output({4, 1});
  m.run(GatherRows{.x = x, .source = sorted.source, .offsets = sorted.offsets, .y = y});
  const Values values = m.read(y);
  CHECK(std::isnan(values[0]));
  CHECK(values[1] == 3);
  CHECK(values[2] == 0);
  CHECK(values[3] == 0);
}

TEST_CASE("rows are scaled on a GPU, and their numbers learn") {
  for (const auto& [rows, cols, gap] :
       {std::array<std::int64_t, 3>{0, 3, 0}, {1, 1, 0}, {40, 77, 3}, {9, 512, 0}, {13, 64, 16}}) {
    CAPTURE(cols);
    for (const DType dtype : kTypes) {
      compare(
          [&](Machine& m) {
            const Tensor x = m.operand("x", {rows, cols}, gap),
                         dy = m.operand("dy", {rows, cols}, 2 * gap);
            const Tensor weight = m.wide_operand("weight", {rows});
            const Tensor y = m.output({rows, cols}, gap), dx = m.output({rows, cols}, gap);
            const Tensor dweight = m.empty({rows}, m.wide()), again = m.empty({rows}, m.wide());
            m.run(ScaleRows{.x = x, .weight = weight, .y = y});
            ScaleRowsBackward backward{
                .x = x, .weight = weight, .dy = dy, .dx = dx, .dweight = dweight};
            m.run(backward);
            backward.dx = dy;  // in place
            backward.dweight = again;
            m.run(backward);
            return outputs(m, y, dx, dweight, dy, again);
          },
          dtype, {.times_reference = 3, .floor = 4});
    }
  }
}
