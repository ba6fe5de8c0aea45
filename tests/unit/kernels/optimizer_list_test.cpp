// Optimizer kernels over lists of tensors, and what they refuse.
#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/norm_runs.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::run_adam;
using test::run_squared_norm;
using trial::decision_of;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

template <class K, class Items>
Tensor table_of(Machine& machine, const Items& items) {
  return make_table<K>(*machine.ctx().device, items, "table");
}

// Around chunks, and without elements at every place of a list.
constexpr std::int64_t kListSizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 3 * kListChunk - 1,
                                       1, 0};

}  // namespace

TEST_CASE("a chunk of a list belongs to the last row that begins at it or before") {
  std::vector<View> gradients;
  for (const std::int64_t n : kListSizes) gradients.push_back({.shape = {n}, .row_stride = n});
  const auto rows = SquaredNorm::rows(gradients);
  const std::int64_t expected[] = {1, 2, 4, 4, 5, 5, 5, 6};
  for (std::int64_t chunk = 0; chunk < 8; ++chunk) {
    CHECK(row_of_chunk(rows.data(), std::ssize(rows), chunk) == expected[chunk]);
  }
  CHECK(SquaredNorm{.gradients = gradients, .table = {}, .out = {}}.workspace_bytes(1) == 64);
}

TEST_CASE("a list has the bits of its tensors one by one") {
  for (const KernelTable* kernels : {&cpu_reference_table(), &cpu_table()}) {
    for (const int threads : {1, 2}) {
      Machine machine(*kernels, DType::f32, DType::f32, threads);
      const Tensor decision = decision_of(machine, 0.3, 4, 0.9, 0.999);
      std::vector<Tensor> owned;
      std::vector<View> gradients;
      std::vector<AdamTensors> lists[2];
      for (std::size_t i = 0; i < std::size(kListSizes); ++i) {
        const std::int64_t n = kListSizes[i];
        const auto make = [&](const char* name) {
          return View(owned.emplace_back(machine.operand(name, {n})));
        };
        const auto of_value = [&](double value, DType dtype) {
          return View(owned.emplace_back(
              machine.of(Values(static_cast<std::size_t>(n), value), {n}, dtype)));
        };
        gradients.push_back(make(i % 2 == 0 ? "g" : "h"));
        for (auto& list : lists) {
          const View copy = of_value(0, DType::bf16);
          list.push_back({.to = {make("p"), gradients.back(), copy},
                          .m = make("m"),
                          .v = of_value(0.01, DType::f32),
                          .lr_scale = 0.1 * static_cast<double>(i + 1),
                          .weight_decay = i % 2 == 0 ? 0.1 : 0});
        }
      }
      const std::span<const AdamTensors> all(lists[0]);
      machine.run(AdamUpdate{
          .tensors = all, .table = table_of<AdamUpdate>(machine, all), .decision = decision});
      const Tensor norms = machine.empty({std::ssize(gradients)}, DType::f64);
      machine.run(SquaredNorm{.gradients = gradients,
                              .table = table_of<SquaredNorm>(machine, gradients),
                              .out = norms});
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        CAPTURE(i);
        run_adam(machine, lists[1][i], {.decision = decision});
        CHECK(values_of(lists[0][i].to.parameter) == values_of(lists[1][i].to.parameter));
        CHECK(values_of(lists[0][i].to.compute_copy) == values_of(lists[1][i].to.compute_copy));
        CHECK(values_of(lists[0][i].m) == values_of(lists[1][i].m));
        CHECK(values_of(lists[0][i].v) == values_of(lists[1][i].v));
        const Tensor norm = machine.empty({1}, DType::f64);
        run_squared_norm(machine, gradients[i], norm);
        CHECK(values_of(norm)[0] == values_of(norms)[i]);
      }
    }
  }
}

TEST_CASE("the squared norm of a gradient in runs of blocks has the bits of the whole one's") {
  constexpr std::int64_t kBlock = SquaredNorm::kBlock;
  for (const KernelTable* kernels : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*kernels, DType::f64, DType::f64, 2);
    for (std::int64_t blocks = 1; blocks <= 13; ++blocks) {
      const Tensor gradient = machine.operand("g", {blocks * kBlock - 5});
      const Tensor whole = machine.empty({1}, DType::f64);
      run_squared_norm(machine, gradient, whole);
      for (std::int64_t first = 0; first <= blocks; ++first) {
        for (std::int64_t second = first; second <= blocks; ++second) {
          CAPTURE(fmt::format("{} blocks cut before {} and {}", blocks, first, second));
          const test::NormRuns runs = test::norm_runs(gradient, {first, second});
          const std::int64_t count = std::ssize(runs.levels);
          const Tensor sums = machine.empty({count}, DType::f64);
          const Tensor joined = machine.empty({2}, DType::f64);
          machine.run(SquaredNorm{.gradients = runs.gradients,
                                  .table = table_of<SquaredNorm>(machine, runs.gradients),
                                  .out = sums});
          // Of a gradient without runs, too.
          machine.run(JoinSquaredNorms{
              .runs = sums,
              .levels = machine.integers(runs.levels),
              .first = machine.integers(std::vector<std::int32_t>{0, 0, std::int32_t(count)}),
              .out = joined});
          CHECK(values_of(joined) == Values{0, values_of(whole)[0]});
        }
      }
    }
  }
}

TEST_CASE("optimizer kernels refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor p = machine.operand("p", {6});
  const Tensor g = machine.operand("g", {2, 3});
  const Tensor other = machine.operand("other", {5});
  const Tensor narrow = machine.empty({6}, DType::bf16);
  const Tensor out = machine.empty({1}, DType::f64);

  const View gradients[] = {g, p};
  const Tensor two = machine.empty({2}, DType::f64);
  const Tensor norm_table = table_of<SquaredNorm>(machine, std::span(gradients));
  SquaredNorm norm{.gradients = gradients, .table = norm_table, .out = two};
  norm.check();
  ClipByValue{g, 1}.check();
  CHECK_THROWS_AS((ClipByValue{g, -1}.check()), InternalError);

  const auto refused = [](auto kernel, const auto& change) {
    change(kernel);
    CHECK_THROWS_AS(kernel.check(), InternalError);
  };
  refused(norm, [&](SquaredNorm& k) { k.gradients = {}; });
  refused(norm, [&](SquaredNorm& k) { k.table = {}; });
  refused(norm, [&](SquaredNorm& k) { k.table = narrow; });
  refused(norm, [&](SquaredNorm& k) { k.out = out; });
  const View mixed[] = {g, narrow};
  refused(norm, [&](SquaredNorm& k) { k.gradients = mixed; });
  refused(norm, [&](SquaredNorm& k) { k.gradients = std::span(mixed).last(1); });

  const Tensor decision = decision_of(machine, 1);
  AdamTensors tensors[] = {{{p, g, narrow}, g, g}, {{p, g, narrow}, g, g}};
  const Tensor table = table_of<AdamUpdate>(machine, std::span<const AdamTensors>(tensors));
  AdamUpdate adam{.tensors = tensors, .table = table, .decision = decision};
  adam.check();
  refused(adam, [&](AdamUpdate& k) { k.tensors = {}; });
  refused(adam, [&](AdamUpdate& k) { k.tensors = k.tensors.first(1); });
  refused(adam, [&](AdamUpdate& k) { k.table = {}; });
  refused(adam, [&](AdamUpdate& k) { k.decision = {}; });
  refused(adam, [&](AdamUpdate& k) { k.decision = out; });
  refused(adam, [&](AdamUpdate& k) { k.beta2 = 1; });
  const auto refuses_second = [&](const auto& change) {
    const AdamTensors before = tensors[1];
    change(tensors[1]);
    CHECK_THROWS_AS(adam.check(), InternalError);
    tensors[1] = before;
  };
  refuses_second([&](AdamTensors& t) { t.to.gradient = other; });
  refuses_second([&](AdamTensors& t) { t.m = narrow; });
  refuses_second([&](AdamTensors& t) { t.v = {}; });
  refuses_second([&](AdamTensors& t) { t.to.compute_copy = p; });
  refuses_second([&](AdamTensors& t) { t.to.compute_copy = {}; });
  const Tensor remainder = machine.integers(std::vector<std::uint16_t>(6));
  refuses_second([&](AdamTensors& t) {
    t.to.parameter = {};
    t.to.remainder = remainder;
  });
  for (AdamTensors& t : tensors) t.to = {{}, g, narrow, remainder};
  adam.check();
  refuses_second([&](AdamTensors& t) { t.to.parameter = p; });
  refuses_second([&](AdamTensors& t) { t.to.compute_copy = {}; });
  refuses_second([&](AdamTensors& t) { t.to.remainder = narrow; });
  refuses_second([&](AdamTensors& t) { t.to.remainder = {}; });

  StepUpdate step{.to = {p, narrow}, .decision = decision};
  step.check();
  refused(step, [&](StepUpdate& k) { k.decision = out; });
  refused(step, [&](StepUpdate& k) { k.to.gradient = remainder; });
  refused(step, [&](StepUpdate& k) { k.to.parameter = other; });

  DecideUpdate decide{.squares = decision, .loss_sum = out, .decision = decision};
  decide.check();
  refused(decide, [&](DecideUpdate& k) { k.squares = p; });
  refused(decide, [&](DecideUpdate& k) { k.loss_sum = decision; });
  refused(decide, [&](DecideUpdate& k) { k.decision = out; });
  refused(decide, [&](DecideUpdate& k) { k.max_norm = 0; });
  refused(decide, [&](DecideUpdate& k) { k.beta1 = 1; });
  refused(decide, [&](DecideUpdate& k) { k.loss_scale.growth_factor = 1; });
  refused(decide, [&](DecideUpdate& k) { k.loss_scale.backoff_factor = 1; });
  refused(decide, [&](DecideUpdate& k) { k.loss_scale.backoff_factor = 0; });
  ScaleUpdate scale{.x = p, .y = g.reshape({6}), .decision = decision};
  scale.check();
  refused(scale, [&](ScaleUpdate& k) { k.decision = out; });
  refused(scale, [&](ScaleUpdate& k) { k.y = other; });
}

}  // namespace llmtrain::kernels
