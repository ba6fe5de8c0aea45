// What DecideUpdate writes: whether a step applies, clipping, the scale of a loss.
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "kernels/optimizer.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

/// What DecideUpdate makes of these squares and this loss, for a decision that stands at `before`.
UpdateDecision decided(const KernelTable& table, const Values& squares, double loss,
                       DecideUpdate decide, const UpdateDecision& before = {}) {
  Machine machine(table, DType::f64, DType::f64, 2);
  const Tensor s = machine.of(squares, {static_cast<std::int64_t>(squares.size())}, DType::f64);
  const Tensor l = machine.of({loss}, {1}, DType::f64);
  const Tensor decision = machine.empty({UpdateDecision::kScalars}, DType::f64);
  *decision.view().as<UpdateDecision>() = before;
  decide.squares = s;
  decide.loss_sum = l;
  decide.decision = decision;
  machine.run(decide);
  CHECK(std::memcmp(s.view().data, squares.data(), s.view().bytes()) == 0);  // untouched
  return *decision.view().as<UpdateDecision>();
}

}  // namespace

TEST_CASE("a decision clips by the norm and counts updates") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const DecideUpdate clips{.lr = 0.25, .max_norm = 2, .beta1 = 0.9, .beta2 = 0.99};
    const UpdateDecision first = decided(*table, {9, 16}, 7.5, clips);
    CHECK(first.applies());
    CHECK(first.loss_sum == 7.5);
    CHECK(first.grad_norm == 5);
    CHECK(first.grad_scale == 2 / (5 + 1e-6));
    CHECK(first.lr == 0.25);
    CHECK(first.updates == 1);
    CHECK(first.bias_correction1 == 1 - std::pow(0.9, 1.0));
    CHECK(first.sqrt_bias_correction2 == std::sqrt(1 - std::pow(0.99, 1.0)));
    const UpdateDecision second = decided(*table, {1, 0}, 7.5, clips, first);
    CHECK(second.grad_scale == 1);  // not scaled up
    CHECK(second.updates == 2);
    CHECK(second.bias_correction1 == 1 - std::pow(0.9, 2.0));
    CHECK(decided(*table, {9e30, 16e30}, 0, {}).grad_scale == 1);
    CHECK(decided(*table, {}, 0, clips).grad_scale == 1);
    // Joined by pairs, as llmtrain::tree_sum says.
    CHECK(decided(*table, {0x1p60, 64, 64, 64}, 0, {}).grad_norm ==
          std::sqrt((0x1p60 + 64) + 128.0));
  }
}

TEST_CASE("norm and clipping are those of gradients without the scale of the loss") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const DecideUpdate clips{.lr = 0.25, .max_norm = 2};
    const UpdateDecision found =
        decided(*table, {9 * 0x1p20, 16 * 0x1p20}, 7.5, clips, {.loss_scale = 1024});
    CHECK(found.applies());
    CHECK(found.grad_norm == 5);
    CHECK(found.grad_scale == 2 / (5 + 1e-6) / 1024);
    CHECK(found.used_loss_scale == 1024);
    CHECK(found.loss_scale == 1024);  // fixed: no interval
    CHECK(decided(*table, {0x1p20}, 0, clips, {.loss_scale = 1024}).grad_scale == 0x1p-10);
  }
}

TEST_CASE("the scale of the loss doubles after its interval and is halved by an overflow") {
  const DecideUpdate follows{.lr = 1, .loss_scale = {.growth_interval = 3}};
  UpdateDecision now{.loss_scale = 8};
  const auto step = [&](double square, double loss = 1) {
    now = decided(cpu_table(), {square}, loss, follows, now);
    CHECK(now.used_loss_scale >= LossScaleRule::kLeast);
  };
  step(1);
  step(1);
  CHECK(now.loss_scale == 8);
  CHECK(now.good_steps == 2);
  step(1);
  CHECK(now.used_loss_scale == 8);
  CHECK(now.loss_scale == 16);
  CHECK(now.good_steps == 0);
  step(1);
  step(INFINITY);
  CHECK_FALSE(now.applies());
  CHECK(now.overflowed());
  CHECK(now.used_loss_scale == 16);
  CHECK(now.loss_scale == 8);
  CHECK(now.good_steps == 0);
  CHECK(now.updates == 4);
  // A loss that is not finite is nothing that a smaller scale would mend.
  step(1);
  step(NAN, INFINITY);
  CHECK_FALSE(now.applies());
  CHECK_FALSE(now.overflowed());
  CHECK(now.loss_scale == 8);
  CHECK(now.good_steps == 1);
  for (const double expected : {4.0, 2.0, 1.0}) {
    step(NAN);
    CHECK(now.overflowed());
    CHECK(now.loss_scale == expected);
  }
  step(NAN);
  CHECK_FALSE(now.overflowed());  // it cannot shrink: the gradients themselves are not finite
  CHECK(now.loss_scale == 1);
  now.loss_scale = LossScaleRule::kMost;
  for (int i = 0; i < 4; ++i) step(1);
  CHECK(now.loss_scale == LossScaleRule::kMost);
  // Without an interval nothing moves it.
  CHECK(decided(cpu_table(), {INFINITY}, 1, {}, {.loss_scale = 8}).loss_scale == 8);
}

TEST_CASE("factors of the loss's scale are the rule's, within its bounds") {
  const DecideUpdate follows{
      .loss_scale = {.growth_interval = 1, .growth_factor = 8, .backoff_factor = 0x1p-4}};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const auto after = [&](double square, double scale) {
      return decided(*table, {square}, 1, follows, {.loss_scale = scale}).loss_scale;
    };
    CHECK(after(1, 64) == 512);
    CHECK(after(NAN, 64) == 4);
    CHECK(after(1, LossScaleRule::kMost / 2) == LossScaleRule::kMost);
    CHECK(after(NAN, 2) == LossScaleRule::kLeast);
  }
}

TEST_CASE("clipping by value knows the scale of the loss, and hides no overflow") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      Values input(40, 2.5);
      input[1] = 300;
      input[20] = -300;
      input[21] = INFINITY;
      input[22] = -INFINITY;
      const Tensor g = machine.of(input, {40}, dtype);
      const Tensor decision = decision_of(machine, 1);
      decision.view().as<UpdateDecision>()->loss_scale = 128;
      machine.run(ClipByValue{g, 1.25, decision});
      const Values found = values_of(g);
      CHECK(found[0] == 2.5);
      CHECK(found[1] == 160);
      CHECK(found[20] == -160);
      CHECK(found[21] == INFINITY);
      CHECK(found[22] == -INFINITY);
    }
  }
}

TEST_CASE("what is not finite does not apply, and does not count") {
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const bool in_loss : {false, true}) {
      const UpdateDecision found =
          decided(cpu_table(), {1, in_loss ? 4 : bad}, in_loss ? bad : 3,
                  {.lr = 0.25, .max_norm = 1, .beta1 = 0.9, .beta2 = 0.99}, {.updates = 4});
      CHECK(!found.applies());
      CHECK(found.updates == 4);
      CHECK(found.grad_scale == 1);
      CHECK(std::isfinite(found.loss_sum) == !in_loss);
      CHECK(std::isfinite(found.grad_norm) == in_loss);
    }
  }
}

TEST_CASE("a loss above its limit does not apply; it is finite all the same") {
  const DecideUpdate limited{.lr = 0.25, .loss_limit = 3, .max_norm = 1, .beta1 = 0.9};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    CHECK(decided(*table, {1, 4}, 3, limited).applies());
    const UpdateDecision above = decided(*table, {1, 4}, 3.0001, limited, {.updates = 4});
    CHECK_FALSE(above.applies());
    CHECK(above.is_finite());
    CHECK_FALSE(above.overflowed());
    CHECK(above.updates == 4);
    Machine machine(*table, DType::f64, DType::f64, 2);
    const Tensor squares = machine.of({1.0}, {1}, DType::f64);
    const Tensor loss = machine.of({5}, {1}, DType::f64);
    const Tensor decision = decision_of(machine, 1);
    const Tensor scalars = machine.of({1, 1, 0.5, 4}, {StepScalars::kScalars}, DType::f64);
    machine.run(DecideUpdate{
        .squares = squares, .loss_sum = loss, .decision = decision, .scalars = scalars});
    CHECK_FALSE(decision.view().as<UpdateDecision>()->applies());  // the step's own limit counts
  }
  CHECK_FALSE(decided(cpu_table(), {NAN}, 1, {}).is_finite());
}

}  // namespace llmtrain::kernels
