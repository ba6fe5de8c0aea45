// FP16: the scale of the loss shrinks where gradients overflow, grows where they do not, and is
// part of the run's records.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

// Far too large a scale at first, no patience with steps that are not finite, and quick growth.
const std::vector<std::string> kOverflows = {
    "precision={compute: fp16, initial_loss_scale: 4Gi, growth_interval: 4}",
    "training.max_steps=40", "resilience={on_non_finite: skip, max_skipped_steps: 1}"};

struct Scales {
  int overflows = 0, growths = 0;
};

struct Factors {
  double growth = 2, backoff = 0.5;
};

// Follows the scale from record to record: each says what its step used, and how many were skipped.
Scales follow(const Workspace& here, double expected, int interval, const Factors& factors = {}) {
  Scales found;
  int good = 0;
  double skipped_before = 0;
  for (const train::StepRecord& record : here.metrics()) {
    if (!record.number(train::metric::kLoss)) continue;
    CAPTURE(record.step);
    CHECK(std::isfinite(*record.number(train::metric::kLoss)));
    CHECK(record.number("train/loss_scale") == expected);
    const double skipped = *record.number("train/skipped_steps");
    const bool overflowed = skipped != skipped_before;
    CHECK(skipped == skipped_before + overflowed);
    skipped_before = skipped;
    if (overflowed) {
      ++found.overflows;
      expected *= factors.backoff;
      good = 0;
    } else {
      CHECK(std::isfinite(*record.number(train::metric::kGradNorm)));
      if (++good == interval) {
        ++found.growths;
        expected *= factors.growth;
        good = 0;
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("gradients that overflow halve the scale of the loss, and the run goes on") {
  const Workspace here(kTinyRecipe);
  const auto result = here.run(kOverflows);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(holds(
      result.output,
      {"step 1: the gradients overflow at a loss scale of 4294967296: update skipped, 1 so far",
       "40 steps took memory as planned"}));
  const Scales scales = follow(here, 0x1p32, 4);
  CHECK(scales.overflows >= 8);
  CHECK(scales.growths >= 3);
}

TEST_CASE("factors and interval of the loss's scale are the recipe's, of a resumed run its own") {
  const Workspace here(kTinyRecipe);
  const auto run = [&](const std::string& keys, int steps) {
    const auto result =
        here.run({"precision={compute: fp16, initial_loss_scale: 4Gi, " + keys + "}",
                  fmt::format("training.max_steps={}", steps)});
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
  };
  run("growth_interval: 3, growth_factor: 4, backoff_factor: 0.0625", 16);
  const Scales scales = follow(here, 0x1p32, 3, {4, 0x1p-4});
  CHECK(scales.overflows >= 2);
  CHECK(scales.growths >= 2);
  const auto at = [&](std::int64_t step, std::string_view key) {
    for (const train::StepRecord& record : here.metrics()) {
      if (record.step == step && record.number(key)) return *record.number(key);
    }
    return -1.0;
  };
  const double before = at(16, "train/loss_scale");
  run("growth_interval: 1, growth_factor: 16384, backoff_factor: 0.0009765625", 18);
  // The scale is the checkpoint's: one that began anew would be 2^32.
  const double now = at(17, "train/loss_scale");
  CHECK(now <= 4 * before);
  CHECK(now >= before / 16);
  const bool overflowed = at(17, "train/skipped_steps") > at(16, "train/skipped_steps");
  CHECK(at(18, "train/loss_scale") == (overflowed ? now * 0x1p-10 : std::min(now * 16384, 0x1p32)));
}

TEST_CASE("on an emulated GPU the scale of the loss follows the gradients, too" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  const Workspace here(kTinyRecipe);
  std::vector<std::string> on_gpu = kOverflows;
  on_gpu[0] =
      "precision={compute: fp16, initial_loss_scale: 4Gi, growth_interval: 4, growth_factor: 4, "
      "backoff_factor: 0.25}";
  on_gpu.push_back("run.device=cuda");
  const auto result = here.run(on_gpu);
  ::unsetenv("LLMTRAIN_CUDA_PLUGIN");
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(holds(result.output, {"40 steps took memory as planned"}));
  const Scales scales = follow(here, 0x1p32, 4, {4, 0.25});
  CHECK(scales.overflows >= 4);
  CHECK(scales.growths >= 3);
}

TEST_CASE("FP16 learns like FP32, and a scale of the loss that is a number stays") {
  const Workspace wide(kTinyRecipe), narrow(kTinyRecipe);
  const auto loss_of = [](const Workspace& here, std::vector<std::string> with) {
    with.push_back("training.max_steps=30");
    const auto result = here.run(with);
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    double loss = 0;
    for (const train::StepRecord& record : here.metrics()) {
      loss = record.number(train::metric::kLoss).value_or(loss);
    }
    return loss;
  };
  const double expected = loss_of(wide, {});
  const double found = loss_of(narrow, {"precision={compute: fp16, loss_scale: 1Ki}"});
  CHECK(found != expected);
  CHECK(std::abs(found - expected) < 0.01 * expected);
  const Scales scales = follow(narrow, 1024, 1000);
  CHECK(scales.overflows == 0);
  for (const train::StepRecord& record : wide.metrics()) {
    CHECK_FALSE(record.number("train/loss_scale").has_value());
  }
}

TEST_CASE("a fixed scale that is too large is the recipe's to mend") {
  const Workspace here(kTinyRecipe);
  const auto result = here.run({"precision={compute: fp16, loss_scale: 4Gi}"});
  INFO(result.output);
  CHECK(result.exit_code == 5);
  CHECK(holds(result.output,
              {"step 1: the gradient norm is not finite", "resilience.on_non_finite is stop"}));
}

TEST_CASE("keys of the loss's scale that mean nothing are refused") {
  const Workspace here(kTinyRecipe);
  const auto refused = [&](const std::string& precision, const std::vector<std::string>& texts) {
    CAPTURE(precision);
    const auto result = here.run({"precision=" + precision});
    INFO(result.output);
    CHECK(result.exit_code == 2);
    CHECK(holds(result.output, texts));
  };
  refused("{compute: bf16, loss_scale: dynamic}",
          {"precision.loss_scale", "belongs to compute fp16, and compute is bf16"});
  refused("{growth_interval: 5}", {"precision.growth_interval", "compute is fp32"});
  refused("{compute: fp16, loss_scale: 1000}",
          {"precision.loss_scale", "1000 is no power of two", "take 512"});
  refused("{compute: fp16, loss_scale: auto}", {"precision.loss_scale", "expected a count"});
  refused("{compute: fp16, loss_scale: 512, initial_loss_scale: 512}",
          {"precision.initial_loss_scale", "belongs to loss_scale: dynamic"});
  refused("{compute: fp16, loss_scale: 512, growth_interval: 5}",
          {"precision.growth_interval", "belongs to loss_scale: dynamic"});
  refused("{compute: bf16, growth_factor: 4}",
          {"precision.growth_factor", "belongs to compute fp16, and compute is bf16"});
  refused("{compute: fp8, backoff_factor: 0.25}",
          {"precision.backoff_factor", "belongs to compute fp16"});
  refused("{compute: fp16, loss_scale: 512, growth_factor: 4}",
          {"precision.growth_factor", "belongs to loss_scale: dynamic"});
  refused("{compute: fp16, loss_scale: 512, backoff_factor: 0.25}",
          {"precision.backoff_factor", "belongs to loss_scale: dynamic"});
  refused("{compute: fp16, growth_factor: 3}",
          {"precision.growth_factor", "3 is no power of two, and would round", "take 2"});
  refused("{compute: fp16, backoff_factor: 0.3}",
          {"precision.backoff_factor", "0.3 is no power of two", "take 0.25"});
  refused("{compute: fp16, growth_factor: 1}", {"precision.growth_factor", "must be >= 2"});
  refused("{compute: fp16, backoff_factor: 1}", {"precision.backoff_factor", "<= 0.5"});
}

}  // namespace llmtrain
