#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kHidden = 5;
constexpr std::int64_t kClasses = 9;

struct HeadCase {
  std::int64_t rows = 6;
  std::int64_t padded = kClasses;
  std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
  bool tied = false;
  double softcap = 0;
};

// Every third row is untrained.
std::vector<std::int32_t> targets_of(std::int64_t rows) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < rows; ++i) {
    targets.push_back(i % 3 == 1 ? -1 : formula_below("target", kClasses, i));
  }
  return targets;
}

Problem loss_head(const HeadCase& c) {
  return {
      .rows = {.length = c.rows},
      .inputs = c.tied ? std::vector<Shape>{} : std::vector<Shape>{{c.rows, kHidden}},
      .build = [c](Place& place) -> Forward {
        const ParameterGroup& w =
            place.store().declare({.name = "head", .shape = {c.padded, kHidden}, .init = {}});
        const Tensor targets = place.ints(targets_of(c.rows));
        std::vector<std::int32_t> tokens;
        for (std::int64_t i = 0; i < c.rows; ++i) {
          tokens.push_back(formula_below("token", kClasses, i));
        }
        const Tensor ids = place.ints(tokens);
        return [=, &place, &w](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
          const Tensor sum = place.tensor({0}, {1}, DType::f64);
          const Var in = c.tied ? ops::embedding(ctx, ids, w) : x[0];
          return {
              {ops::loss_head(
                  ctx, in, w, targets, sum,
                  {.num_classes = kClasses, .softcap = c.softcap, .chunk_bytes = c.chunk_bytes})},
              sum};
        };
      }};
}

}  // namespace

TEST_CASE("the loss head differentiates, with untrained rows") { check_operation(loss_head({})); }

TEST_CASE("padding of the vocabulary has no probability and no gradient") {
  check_operation(loss_head({.padded = 16}));
  const TrialResult plain = run_trial(loss_head({}), {});
  const TrialResult padded = run_trial(loss_head({.padded = 16}), {});
  const std::vector<double>& gradient = padded.gradients.at("head");
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (i < kClasses * kHidden) {
      CHECK(gradient[i] == plain.gradients.at("head")[i]);
    } else {
      CHECK(gradient[i] == 0);
    }
  }
}

TEST_CASE("the loss head differentiates through a cap of the logits, and so do logits alone") {
  for (const double softcap : {0.25, 2.0}) {
    check_operation(loss_head({.softcap = softcap}));
    check_operation(loss_head({.padded = 16, .softcap = softcap}));
  }
  Place place({.length = 1}, {});
  const ParameterGroup& w = place.store().declare({.name = "head", .shape = {2, 1}, .init = {}});
  place.allocate_parameters(w, {1, -4});
  const std::vector<double> z =
      values_of(ops::logits(place.context(), place.tensor({3}, {1, 1}), w, 5));
  CHECK(std::abs(z[0] - 5 * std::tanh(3.0 / 5)) < 1e-12);
  CHECK(std::abs(z[1] + 5 * std::tanh(12.0 / 5)) < 1e-12);
}

TEST_CASE("a tied head and embedding sum both gradients") {
  check_operation(loss_head({.tied = true}));
}

TEST_CASE("cutting the rows into chunks changes neither loss nor gradients") {
  const HeadCase whole{.rows = 150};
  HeadCase chunked = whole;
  chunked.chunk_bytes = 1;  // the smallest chunk is 64 rows
  check_gradients(loss_head(chunked));
  check_fast_path(loss_head(chunked));
  const TrialResult a = run_trial(loss_head(whole), {});
  const TrialResult b = run_trial(loss_head(chunked), {});
  CHECK(a.outputs == b.outputs);
  CHECK(a.gradients.at("input 0") == b.gradients.at("input 0"));
  CHECK(b.peak_bytes < a.peak_bytes);
}

TEST_CASE("a row without target has no loss, and a uniform guess loses log of the classes") {
  Place place({.length = 3}, {});
  const ParameterGroup& w =
      place.store().declare({.name = "head", .shape = {kClasses, kHidden}, .init = {}});
  place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, false);
  place.store().initialize(0);  // zeros
  const Tensor sum = place.tensor({0.5}, {1}, DType::f64);
  const Var x{place.tensor(std::vector<double>(3 * kHidden, 1), {3, kHidden}), -1, nullptr};
  ops::loss_head(place.context(), x, w, place.ints({4, -1, 0}), sum, {.num_classes = kClasses});
  std::vector<double> value(1);
  place.device().copy_to_host(std::as_writable_bytes(std::span(value)), sum);
  CHECK(value.front() == test::relative(0.5 + 2 * std::log(9.0), 1e-12));
}

}  // namespace llmtrain::test
