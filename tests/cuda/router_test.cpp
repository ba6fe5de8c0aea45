#include "kernels/router.hpp"

#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

/// Types of a model; the logits of a bf16 or fp16 model are FP32.
constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr RouterScores kSoftmax = RouterScores::softmax, kSigmoid = RouterScores::sigmoid;

struct Case {
  std::int64_t rows, experts;
  RouterRule rule;
  bool bias = false;
  std::int64_t gap = 0;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      {0, 4, {.top_k = 2}},
      {3, 1, {.top_k = 1}},
      {18, 6, {.top_k = 6, .normalize = true, .scale = 2.5}, false, 3},
      {12, 33, {.top_k = 3, .scores = kSigmoid}, true},
      {10, 128, {.top_k = 8, .normalize = true}},
      {16, 64, {.top_k = 40, .scores = kSigmoid, .normalize = true}, true, 1},
      {14, 12, {.top_k = 3, .groups = 4, .kept_groups = 2}, true},
      {30, 8, {.top_k = 2, .groups = 8, .kept_groups = 3}},
      {8,
       160,
       {.top_k = 6,
        .scores = kSigmoid,
        .normalize = true,
        .scale = 1.5,
        .groups = 40,
        .kept_groups = 4},
       true},
      // A row that takes more shared memory than blocks have unasked.
      {4, 4096, {.top_k = 2, .scores = kSigmoid, .groups = 1024, .kept_groups = 3}},
  };
  return kCases;
}

struct Routed {
  Tensor logits, bias, expert, weight, score;

  /// Logits are multiples of 1/4, so that many are equal; the bias is, too.
  Routed(Machine& m, const Case& c) {
    const auto quarters = [&](std::string_view name, const Shape& shape, std::int64_t gap) {
      const PhiloxKey key = philox_key(test_seed() + 2, "test", name);
      Values values(static_cast<std::size_t>(shape.numel()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.25 * static_cast<double>(philox_below(key, 0, i, 24)) - 3;
      }
      return m.of(values, shape, m.wide(), gap);
    };
    logits = quarters("logits", {c.rows, c.experts}, c.gap);
    if (c.bias) bias = quarters("bias", {c.experts}, 0);
    expert = m.empty_integers({c.rows, c.rule.top_k});
    weight = m.empty({c.rows, c.rule.top_k}, m.wide());
    score = m.empty({c.rows, c.rule.top_k}, m.wide());
    m.run(RouteTokens{.logits = logits,
                      .bias = bias.view(),
                      .expert = expert,
                      .weight = weight,
                      .score = score,
                      .rule = c.rule});
  }
};

/// Few of them, so that many are equal; some choices are none. The experts of a row differ.
struct Choices {
  std::vector<std::int32_t> expert;
  Values score;

  Choices(std::int64_t rows, std::int64_t top_k, std::int64_t experts) {
    const PhiloxKey key = philox_key(test_seed() + 6, "test", "choices");
    std::uint64_t word = 0;
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int32_t>(philox_below(key, 0, word++, static_cast<std::uint32_t>(n)));
    };
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int32_t e = std::min(below(experts), below(experts));
      for (std::int64_t k = 0; k < top_k; ++k) {
        expert.push_back(below(9) == 0 ? -1 : e);
        score.push_back(0.125 * (below(6) - 1));
        e = (e + 1) % static_cast<std::int32_t>(experts);
      }
    }
  }
};

}  // namespace

TEST_CASE("routers choose on a GPU whom the reference chooses, equal keys by number") {
  for (const Case& c : cases()) {
    CAPTURE(c.rows);
    CAPTURE(c.experts);
    CAPTURE(c.rule.top_k);
    for (const DType dtype : {DType::f64, DType::f32}) {
      compare(
          [&](Machine& m) {
            const Routed routed(m, c);
            return outputs(m, routed.expert, routed.weight, routed.score);
          },
          dtype, {.floor = 8});
    }
  }
}

TEST_CASE("the gradient of logits through weights and losses is the reference's") {
  for (const Case& c : cases()) {
    CAPTURE(c.rows);
    CAPTURE(c.experts);
    CAPTURE(c.rule.top_k);
    for (const DType dtype : kTypes) {
      compare(
          [&](Machine& m) {
            const Routed routed(m, c);
            const std::int64_t sequences = c.rows % 2 == 0 ? 2 : 1;
            const Tensor choices = m.empty({sequences, c.experts}, m.wide());
            m.run(CountChoices{.expert = routed.expert, .choices = choices});
            const Shape shape{c.rows, c.experts};
            const Tensor dweight = m.wide_operand("dweight", {c.rows, c.rule.top_k});
            const Tensor dlogits = m.output(shape, c.gap), scaled = m.output(shape);
            const Tensor alone = m.output(shape), values = m.empty({2, c.rows}, m.wide());
            RouteTokensBackward op{
                .logits = routed.logits,
                .expert = routed.expert,
                .dweight = dweight.view(),
                .choices = choices,
                .dlogits = dlogits,
                .values = values,
                .rule = c.rule,
                .losses = {.balance = 0.3, .z = 0.07, .seq_len = 5, .grad_scale = 0.25},
                .scalars = {},
                .decision = {}};
            m.run(op);
            // By the numbers that stand on the device: of the step, and the scale of the loss.
            const Tensor scalars = m.of({7, 0.2, 0, 0}, {StepScalars::kScalars}, DType::f64);
            Values numbers(UpdateDecision::kScalars, 0.0);
            numbers[7] = 64;  // loss_scale
            const Tensor decision = m.of(numbers, {UpdateDecision::kScalars}, DType::f64);
            op.scalars = scalars;
            op.decision = decision;
            op.dlogits = scaled;
            op.dweight = {};
            op.values = {};
            m.run(op);
            op.losses = {.grad_scale = 1};
            op.choices = {};
            op.dweight = dweight;
            op.dlogits = alone;
            m.run(op);
            return outputs(m, choices, dlogits, values, scaled, alone);
          },
          dtype, {.times_reference = 3, .floor = 8});
    }
  }
}

TEST_CASE("a logit that is no number makes all weights of its row none on a GPU, and no others") {
  for (const RouterScores scores : {kSoftmax, kSigmoid}) {
    for (const std::int64_t groups : {1, 2}) {
      for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
        const auto routed = [&](Place place) {
          Machine m(place, DType::f32, DType::f32);
          const Tensor logits =
              m.of({0, bad, 1, 2, bad, bad, bad, bad, 0, 2, 1, 3}, {3, 4}, DType::f32);
          const Tensor expert = m.empty_integers({3, 2});
          const Tensor weight = m.empty({3, 2}, DType::f32), score = m.empty({3, 2}, DType::f32);
          m.run(RouteTokens{.logits = logits,
                            .bias = {},
                            .expert = expert,
                            .weight = weight,
                            .score = score,
                            .rule = {.top_k = 2,
                                     .scores = scores,
                                     .normalize = true,
                                     .groups = groups,
                                     .kept_groups = 1}});
          const Values weights = m.read(weight), as_they_are = m.read(score);
          for (std::size_t i = 0; i < 6; ++i) {
            CHECK(std::isnan(weights[i]) == (i < 4));
            CHECK(std::isnan(as_they_are[i]) == (i < 4));
          }
          return m.read(expert);
        };
        CHECK(routed(Place::gpu) == routed(Place::reference));
      }
    }
  }
}

TEST_CASE("choices are counted by sequence on a GPU") {
  for (const auto& [rows, sequences, experts] :
       {std::array<std::int64_t, 3>{0, 2, 3}, {1, 1, 1}, {90, 3, 5}, {1200, 2, 40}}) {
    CAPTURE(rows);
    for (const DType dtype : {DType::f64, DType::f32}) {
      compare(
          [&](Machine& m) {
            const Tensor expert = m.integers(Choices(rows, 2, experts).expert).reshape({rows, 2});
            const Tensor counts = m.empty({sequences, experts}, dtype);
            m.run(CountChoices{.expert = expert, .choices = counts});
            return outputs(m, counts);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("experts keep on a GPU the choices that the reference keeps, equal ones by position") {
  struct Sizes {
    std::int64_t length, sequences, top_k, experts, parts;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1}, Sizes{2, 3, 2, 2, 1}, Sizes{38, 2, 3, 5, 2},
                         Sizes{600, 1, 1, 3, 1}, Sizes{51, 3, 4, 4, 3}, Sizes{0, 2, 2, 3, 1}}) {
    const std::int64_t rows = s.length * s.sequences;
    const Choices choices(rows, s.top_k, s.experts);
    // Of every part's rows, and in no order that rows have.
    std::vector<std::int32_t> positions;
    for (std::int64_t row = 0; row < rows; ++row) {
      positions.push_back(static_cast<std::int32_t>(row * 7919 % 65537));
    }
    for (const std::int64_t capacity : {1, 3, 11, 64, 4000}) {
      CAPTURE(s.length);
      CAPTURE(capacity);
      for (const DType dtype : {DType::f64, DType::f32}) {
        compare(
            [&](Machine& m) {
              const Shape shape{rows, s.top_k};
              const Tensor expert = m.integers(choices.expert).reshape(shape);
              const Tensor score = m.of(choices.score, shape, dtype);
              const Tensor position = m.integers(positions);
              const Tensor kept = m.empty_integers(shape), in_order = m.empty_integers(shape);
              LimitChoices op{.expert = expert,
                              .score = score,
                              .position = rows > 0 ? position.view() : View{},
                              .kept = kept,
                              .experts = s.experts,
                              .sequences = s.sequences,
                              .parts = rows > 0 ? s.parts : 1,
                              .capacity = capacity};
              m.run(op);
              op.position = {};
              op.parts = 1;
              op.kept = in_order;
              m.run(op);
              return outputs(m, kept, in_order);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}

TEST_CASE("of scores on a GPU rounding and signs of zero do not count, and NaN goes first") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double error = dtype == DType::f64 ? 1e-9 : 1e-6;
    for (const Values& scores :
         {Values{0.5 * (1 - error), 0.5 * (1 + error)}, Values{0.5, 0.5 * (1 + 100 * error)},
          Values{-0.0, 0.0}, Values{0.0, -0.0}, Values{1, NAN}, Values{INFINITY, NAN},
          Values{-1, -2}, Values{-2, -1}, Values{1e-40, -1}}) {
      compare(
          [&](Machine& m) {
            const Tensor expert = m.integers(std::vector<std::int32_t>{0, 0}).reshape({2, 1});
            const Tensor score = m.of(scores, {2, 1}, dtype), kept = m.empty_integers({2, 1});
            m.run(LimitChoices{.expert = expert,
                               .score = score,
                               .position = {},
                               .kept = kept,
                               .experts = 1,
                               .capacity = 1});
            return outputs(m, kept);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("a bias moves on a GPU as on the CPU, if the step applies") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const Values& counts : {Values{5, 3, 1, 3}, Values{3, 3, 4}, Values{0, 0}, Values{7}}) {
      for (const double apply : {0.0, 1.0}) {
        compare(
            [&](Machine& m) {
              const auto experts = std::ssize(counts);
              const Tensor bias = m.wide_operand("bias", {experts});
              const Tensor choices = m.of(counts, {experts}, m.wide());
              Values numbers(UpdateDecision::kScalars, 1);
              numbers[2] = apply;
              const Tensor decision = m.of(numbers, {UpdateDecision::kScalars}, DType::f64);
              m.run(BalanceRouter{
                  .choices = choices, .bias = bias, .decision = decision, .speed = 0.25});
              return outputs(m, bias);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}
