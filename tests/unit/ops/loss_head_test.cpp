#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "kernels/elementwise.hpp"
#include "tests/support/formula.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/source_tree.hpp"

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
  double z_loss_coef = 0;
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
  return {.rows = {.length = c.rows},
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
              const Tensor sum = place.tensor({0, 0}, {2}, DType::f64);
              const Var in = c.tied ? ops::embedding(ctx, ids, w) : x[0];
              return {{ops::loss_head(ctx, in, w, targets, sum,
                                      {.num_classes = kClasses,
                                       .softcap = c.softcap,
                                       .z_loss_coef = c.z_loss_coef,
                                       .chunk_bytes = c.chunk_bytes})},
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

TEST_CASE("the loss head differentiates with z-loss, capped, padded and in chunks") {
  for (const double softcap : {0.0, 2.0}) {
    check_operation(loss_head({.padded = 16, .softcap = softcap, .z_loss_coef = 0.3}));
  }
  const HeadCase chunked{.rows = 150, .chunk_bytes = 1, .z_loss_coef = 0.3};
  check_gradients(loss_head(chunked));
  check_fast_path(loss_head(chunked));
}

namespace {

struct HeadResult {
  std::vector<double> losses;  // loss and z-loss
  std::vector<double> dx, dw;
};

// The head of the golden file.
HeadResult run_head(const nlohmann::json& golden, double softcap, bool training,
                    const TrialOptions& options, bool narrow_logits = false) {
  const std::int64_t rows = golden["rows"], hidden = golden["hidden"], padded = golden["padded"];
  const auto values = [](std::string_view name, std::int64_t count, double scale) {
    const std::vector<float> drawn = formula_weights(name, count, 0, scale);
    return std::vector<double>(drawn.begin(), drawn.end());
  };
  Place place({.length = rows}, options);
  const ParameterGroup& w =
      place.store().declare({.name = "head", .shape = {padded, hidden}, .init = {}});
  const DType wide = statistics_dtype(options.compute);
  place.store().allocate(place.device(), {options.compute, wide, wide}, true);
  const std::vector<double> table = values("z-loss head", padded * hidden, golden["scale"]);
  const Parameter& parameter = *w.members().front();
  if (wide == DType::f64) {
    place.store().write(parameter, std::as_bytes(std::span(table)));
  } else {
    const std::vector<float> narrow(table.begin(), table.end());
    place.store().write(parameter, std::as_bytes(std::span(narrow)));
  }
  const Tensor zero = place.tensor(std::vector<double>(table.size()), {padded, hidden}, wide);
  kernels::launch(place.context().kernel, kernels::ScaleCast{.x = zero, .y = w.grad(), .scale = 1});
  Tape tape;
  OpCtx ctx = place.context();
  ctx.tape = training ? &tape : nullptr;
  ctx.training = training;
  ctx.step.grad_scale = golden["grad_scale"];
  const Tensor input = place.tensor(values("z-loss x", rows * hidden, 1), {rows, hidden});
  const Var x = training ? tape.leaf(input) : Var{input, -1, nullptr};
  const Tensor sum = place.tensor({0, 0}, {2}, DType::f64);
  const Tensor targets = place.ints(golden["targets"].get<std::vector<std::int32_t>>());
  const Var root = ops::loss_head(ctx, x, w, targets, sum,
                                  {.num_classes = golden["classes"],
                                   .softcap = softcap,
                                   .z_loss_coef = golden["z_loss_coef"],
                                   .chunk_bytes = 1,
                                   .narrow_logits = narrow_logits});
  if (!training) return {values_of(sum), {}, {}};
  tape.seed_root(root);
  tape.backward(ctx, WeightGrads::now);
  return {values_of(sum), values_of(tape.take_gradient(x)), values_of(w.grad())};
}

double distance(const std::vector<double>& found, const nlohmann::json& expected) {
  REQUIRE(found.size() == expected.size());
  double off = 0, largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    off = std::max(off, std::abs(found[i] - expected[i].get<double>()));
    largest = std::max(largest, std::abs(expected[i].get<double>()));
  }
  return off / largest;
}

}  // namespace

TEST_CASE("loss, z-loss and gradients of a head are PyTorch's") {
  std::ifstream file(test_file("unit/ops/z_loss_golden.json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const nlohmann::json& c : golden["cases"]) {
    const double softcap = c["softcap"];
    CAPTURE(softcap);
    for (const auto& [options, bound] :
         {std::pair(TrialOptions{}, 1e-13),
          std::pair(TrialOptions{.compute = DType::f32, .table = &kernels::cpu_table()}, 2e-6)}) {
      const HeadResult found = run_head(golden, softcap, true, options);
      CHECK(distance({found.losses[0]}, nlohmann::json::array({c["loss"]})) <= bound);
      CHECK(distance({found.losses[1]}, nlohmann::json::array({c["z_loss"]})) <= bound);
      CHECK(distance(found.dx, c["dx"]) <= bound);
      CHECK(distance(found.dw, c["dw"]) <= bound);
      // An evaluation has the loss alone.
      const HeadResult evaluated = run_head(golden, softcap, false, options);
      CHECK(evaluated.losses[0] == found.losses[0]);
      CHECK(evaluated.losses[1] == 0);
    }
  }
}

TEST_CASE("logits in the type of products are rounded, and nothing else is") {
  constexpr double kRounding = 0x1p-8;
  std::ifstream file(test_file("unit/ops/z_loss_golden.json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const nlohmann::json& c : golden["cases"]) {
    const double softcap = c["softcap"];
    CAPTURE(softcap);
    for (const auto* table : {&kernels::cpu_reference_table(), &kernels::cpu_table()}) {
      const TrialOptions options{.compute = DType::bf16, .table = table};
      const HeadResult wide = run_head(golden, softcap, true, options);
      const HeadResult narrow = run_head(golden, softcap, true, options, true);
      // Of operands that are rounded themselves; a logit's error is a share of the logit.
      for (const HeadResult* found : {&wide, &narrow}) {
        CHECK(distance({found->losses[0]}, nlohmann::json::array({c["loss"]})) <= 2 * kRounding);
        CHECK(distance(found->dx, c["dx"]) <= 4 * kRounding);
        CHECK(distance(found->dw, c["dw"]) <= 4 * kRounding);
      }
      CHECK(narrow.losses != wide.losses);
      CHECK(run_head(golden, softcap, false, options, true).losses[0] == narrow.losses[0]);
    }
  }
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
