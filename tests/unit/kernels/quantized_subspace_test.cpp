// When subspaces are chosen, and projectors of few bits.
#include "kernels/quantized_subspace.hpp"

#include <cfloat>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

UpdateDecision read_decision(const Tensor& tensor) { return *tensor.view().as<UpdateDecision>(); }

/// What becomes of the decision of an update number `t` where a subspace stays for `gap`.
struct Decisions {
  UpdateDecision step, choice;
  Decisions(int t, double gap, bool applies = true) {
    Machine machine(cpu_table(), DType::f64, DType::f64, 1);
    const Tensor decision = decision_of(machine, 0.25, t, 0.5, 0.75);
    decision.view().as<UpdateDecision>()->lr = 3;
    decision.view().as<UpdateDecision>()->apply = applies ? 1 : 0;
    const Tensor of_step = machine.empty(decision.shape(), DType::f64),
                 of_choice = machine.empty(decision.shape(), DType::f64);
    machine.run(SubspaceDecisions{.decision = decision,
                                  .gap = machine.of({gap}, {1}, DType::f64),
                                  .step = of_step,
                                  .choice = of_choice});
    step = read_decision(of_step);
    choice = read_decision(of_choice);
  }
};

/// A subspace that is followed over the first vectors of one choice after the other.
class Followed {
 public:
  Followed(double threshold, double growth, std::int64_t queue, bool of_rows, DType dtype)
      : machine_(cpu_table(), dtype, dtype, 1),
        of_rows_(of_rows),
        threshold_(threshold),
        growth_(growth),
        leading_(machine_.of({0, 0, 0}, {1, 3}, dtype)),
        similarities_(machine_.of(Values(static_cast<std::size_t>(queue), FollowSubspace::kNone),
                                  {1, queue}, DType::f64)),
        gap_(machine_.of({3}, {1, 1}, DType::f64)) {}

  void choose(const Values& first, bool applies = true) {
    updates_ += applies ? 1 : 0;
    // A second vector beside it, which has no part in anything.
    const Values rows{first[0], first[1], first[2], 7, 8, 9},
        columns{first[0], 7, first[1], 8, first[2], 9};
    const Tensor vectors = of_rows_ ? machine_.of(rows, {2, 3}, machine_.compute())
                                    : machine_.of(columns, {3, 2}, machine_.compute());
    const Tensor decision = decision_of(machine_, 1, updates_);
    decision.view().as<UpdateDecision>()->apply = applies ? 1 : 0;
    const Values before = values_of(vectors);
    machine_.run(FollowSubspace{.vectors = vectors,
                                .leading = leading_,
                                .similarities = similarities_,
                                .gap = gap_,
                                .decision = decision,
                                .of_rows = of_rows_,
                                .threshold = threshold_,
                                .growth = growth_});
    const Values after = values_of(vectors);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool is_first = of_rows_ ? i < 3 : i % 2 == 0;
      CHECK(after[i] == (is_first && turns_ ? -before[i] : before[i]));
    }
  }
  /// The first vectors from here on are those whose sign does not stay.
  void turns(bool turns) { turns_ = turns; }
  double gap() const { return values_of(gap_)[0]; }
  Values similarities() const { return values_of(similarities_); }
  Values leading() const { return values_of(leading_); }

 private:
  Machine machine_;
  bool of_rows_;
  double threshold_, growth_;
  Tensor leading_, similarities_, gap_;
  int updates_ = 0;
  bool turns_ = false;
};

struct Coded {
  Values codes, scales, zeros, decoded;
};

/// Bytes that hold 77.
Tensor bytes(Machine& machine, std::int64_t count) {
  return machine.integers(std::vector<std::uint8_t>(static_cast<std::size_t>(count), 77));
}
Values values_of_bytes(const Tensor& tensor) {
  const auto* const first = tensor.view().as<std::uint8_t>();
  return {first, first + tensor.numel()};
}

Coded coded(const Values& x, int bits, std::int64_t group, DType dtype = DType::f32,
            bool applies = true) {
  Machine machine(cpu_table(), dtype, dtype, 1);
  const auto n = static_cast<std::int64_t>(x.size());
  const std::int64_t groups = affine_groups(n, group);
  const Tensor codes = bytes(machine, n), zeros = bytes(machine, groups),
               scales =
                   machine.of(Values(static_cast<std::size_t>(groups), 77), {groups}, DType::f32),
               y = machine.empty({n}, dtype);
  const Tensor decision = decision_of(machine, 1);
  decision.view().as<UpdateDecision>()->apply = applies ? 1 : 0;
  machine.run(AffineQuantize{.x = machine.of(x, {n}, dtype),
                             .codes = codes,
                             .scales = scales,
                             .zeros = zeros,
                             .decision = decision,
                             .bits = bits,
                             .group = group});
  machine.run(
      AffineDequantize{.codes = codes, .scales = scales, .zeros = zeros, .y = y, .group = group});
  return {values_of_bytes(codes), values_of(scales), values_of_bytes(zeros), values_of(y)};
}

}  // namespace

TEST_CASE("a subspace is chosen in the first update and in multiples of its gap from there") {
  for (int t = 1; t <= 13; ++t) {
    CAPTURE(t);
    CHECK(Decisions(t, 1).choice.applies());
    CHECK(Decisions(t, 4).choice.applies() == (t == 1 || t == 5 || t == 9 || t == 13));
    CHECK(Decisions(t, 5).choice.applies() == (t == 1 || t == 6 || t == 11));
    CHECK(!Decisions(t, 1, false).choice.applies());
  }
}

TEST_CASE("a step in a subspace has the update's corrections, lr 1 and no clipping") {
  const Decisions made(3, 2);
  CHECK(made.step.applies());
  CHECK(made.step.lr == 1);
  CHECK(made.step.grad_scale == 1);
  CHECK(made.step.updates == 3);
  CHECK(made.step.bias_correction1 == 1 - std::pow(0.5, 3));
  CHECK(made.step.sqrt_bias_correction2 == std::sqrt(1 - std::pow(0.75, 3)));
  CHECK(made.choice.updates == 3);
  CHECK(!Decisions(3, 2, false).step.applies());
}

TEST_CASE(
    "a gap grows where the last similarities are there and their mean reaches the threshold") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const bool of_rows : {true, false}) {
      Followed followed(0.5, 1.5, 2, of_rows, dtype);
      constexpr double kNone = FollowSubspace::kNone;
      followed.choose({1, 0, 0});
      CHECK(followed.similarities() == Values{kNone, kNone});
      CHECK(followed.leading() == Values{1, 0, 0});
      followed.choose({2, 0, 0});  // whatever its length
      CHECK(followed.similarities() == Values{kNone, 1});
      CHECK(followed.gap() == 3);
      followed.choose({0, 1, 0});
      CHECK(followed.similarities() == Values{1, 0});
      CHECK(followed.gap() == 4);  // 4.5
      followed.choose({0, 0, 2}, false);
      CHECK(followed.similarities() == Values{1, 0});
      CHECK(followed.leading() == Values{0, 1, 0});
      followed.choose({0, 0.5, 1.125});  // 4, 9
      CHECK(followed.similarities()[0] == 0);
      CHECK(std::abs(followed.similarities()[1] - 4 / std::sqrt(97.0)) < 1e-15);
      CHECK(followed.leading() == Values{0, 0.5, 1.125});
      CHECK(followed.gap() == 4);
    }
  }
}

TEST_CASE("a first vector has the sign by which it is nearer to the last choice") {
  for (const bool of_rows : {true, false}) {
    Followed followed(0.75, 2, 1, of_rows, DType::f32);
    followed.choose({-1, 0, 0});
    CHECK(followed.leading() == Values{-1, 0, 0});
    followed.turns(true);
    followed.choose({1, 0, 0});
    CHECK(followed.leading() == Values{-1, 0, 0});
    CHECK(followed.similarities() == Values{1});
    CHECK(followed.gap() == 6);
    followed.choose({3, -4, 0});
    CHECK(followed.leading() == Values{-3, 4, 0});
    CHECK(std::abs(followed.similarities()[0] - 0.6) < 1e-15);
    CHECK(followed.gap() == 6);
    followed.turns(false);
    followed.choose({0, 0, 1});
    CHECK(followed.similarities() == Values{0});
  }
}

TEST_CASE("a queue that is not full makes no gap grow, whatever the threshold") {
  Followed followed(-1, 2, 3, true, DType::f64);
  for (int choice = 1; choice <= 3; ++choice) {
    followed.choose({0, 1, 0});
    CHECK(followed.gap() == 3);
  }
  followed.choose({0, 0, 1});
  CHECK(followed.gap() == 6);
}

TEST_CASE("a group's range, rounded to FP32, is cut into steps, of which one is its zero") {
  const Coded c = coded({-1, 0, 0.5, 2, -1, 1.5, 0.25, 2}, 2, 4);
  CHECK(c.scales == Values{1, 1});
  CHECK(c.zeros == Values{1, 1});
  CHECK(c.codes == Values{0, 1, 1, 3, 0, 3, 1, 3});  // half to even
  CHECK(c.decoded == Values{-1, 0, 0, 2, -1, 2, 0, 2});
  // The last group is short.
  const Coded last = coded({-1, 0, 0.5, 2, 0, 6}, 2, 4);
  CHECK(last.scales == Values{1, 2});
  CHECK(last.zeros == Values{1, 0});
  CHECK(last.codes == Values{0, 1, 1, 3, 0, 3});
  CHECK(last.decoded == Values{-1, 0, 0, 2, 0, 6});
}

TEST_CASE("what lies outside of a range that reaches zero from a group's numbers is cut off") {
  const Coded above = coded({3, 4, 5, 6}, 2, 4);
  CHECK(above.zeros == Values{0});
  CHECK(above.codes == Values{3, 3, 3, 3});
  const Coded below = coded({-6, -5, -4, -3}, 2, 4);
  CHECK(below.zeros == Values{3});
  CHECK(below.decoded == Values{-3, -3, -3, -3});
  // A range is at least 1e-5.
  const Coded equal = coded({0.25, 0.25}, 2, 4);
  CHECK(equal.scales == Values{1e-5F / 3.0F});
  CHECK(equal.codes == Values{3, 3});
  CHECK(coded({0, 0}, 8, 4).codes == Values{0, 0});
}

TEST_CASE("codes are those of numbers rounded to FP32, and nearest in a range around zero") {
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  const Values x = values_of(machine.normals("x", {1000}, DType::f64, DType::f64));
  Values rounded;
  for (const double v : x) rounded.push_back(static_cast<float>(v));
  for (int bits = 2; bits <= 8; ++bits) {
    for (const std::int64_t group : {1, 7, 256, 1000, 4096}) {
      CAPTURE(bits);
      CAPTURE(group);
      const Coded wide = coded(x, bits, group, DType::f64), narrow = coded(rounded, bits, group);
      CHECK(wide.codes == narrow.codes);
      CHECK(wide.scales == narrow.scales);
      CHECK(wide.zeros == narrow.zeros);
      if (group < 256) continue;  // may be of one sign
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double scale = wide.scales[i / static_cast<std::size_t>(group)];
        CHECK(wide.codes[i] <= (1 << bits) - 1);
        // Rounding of the zero may cut half a step off an end.
        CHECK(std::abs(wide.decoded[i] - x[i]) <= scale * (1 + 1e-5));
        CHECK(std::abs(narrow.decoded[i] - wide.decoded[i]) <= 4 * FLT_EPSILON * std::abs(x[i]));
      }
    }
  }
}

TEST_CASE("codes stay where the decision does not apply") {
  const Coded c = coded({-1, 0, 0.5, 2}, 4, 2, DType::f32, false);
  CHECK(c.codes == Values{77, 77, 77, 77});
  CHECK(c.scales == Values{77, 77});
  CHECK(c.zeros == Values{77, 77});
  CHECK(c.decoded == Values{0, 0, 0, 0});
}

TEST_CASE("codes have up to eight bits and a scale for each group") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  AffineQuantize op{.x = machine.empty({8}, DType::f32),
                    .codes = bytes(machine, 8),
                    .scales = machine.empty({2}, DType::f32),
                    .zeros = bytes(machine, 2),
                    .decision = decision_of(machine, 1),
                    .bits = 9,
                    .group = 4};
  CHECK_THROWS_AS(machine.run(op), InternalError);
  op.bits = 8;
  op.group = 3;
  CHECK_THROWS_AS(machine.run(op), InternalError);
  op.group = 4;
  machine.run(op);
}

}  // namespace llmtrain::kernels
