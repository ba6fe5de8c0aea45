// What the recipe says about bad steps (resilience.on_non_finite, on_loss_spike): rare_byte.hpp.
// Ways back are rollback_test.cpp's.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tests/e2e/rare_byte.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

std::string allow(std::int64_t steps) {
  return fmt::format("resilience={{on_non_finite: skip, max_skipped_steps: {}}}", steps);
}

}  // namespace

TEST_CASE("stop: the first step that is not finite ends the run and is named") {
  const RareByte rare;
  const std::int64_t first = rare.first_row_of(1);
  REQUIRE(first > 1);

  const auto result = rare.run({});

  INFO(result.output);
  CHECK(result.exit_code == 5);
  CHECK(holds(result.output, {fmt::format("step {}: the loss is not finite (samples {} to {}); "
                                          "resilience.on_non_finite is stop",
                                          first, first - 1, first - 1),
                              fmt::format("step {}: not finite: the loss, the gradient of ", first),
                              "the values of model.embed_tokens.weight\n",
                              fmt::format("saved run/checkpoints/step-{:08}", first - 1)}));
  CHECK(result.output.find(fmt::format("step-{:08}", first)) == std::string::npos);
}

TEST_CASE("skip: steps that are not finite are counted, and the others train on") {
  const RareByte rare;
  const std::int64_t longest = rare.longest_row();
  REQUIRE(longest >= 2);

  const auto result = rare.run({allow(longest)});

  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  std::int64_t skipped = 0;
  for (const train::StepRecord& record : rare.here.metrics()) {
    const auto loss = record.number(train::metric::kLoss);
    if (!loss) continue;
    CAPTURE(record.step);
    const bool bad = rare.bad[static_cast<std::size_t>(record.step)];
    skipped += bad;
    CHECK(std::isfinite(*loss) == !bad);
    CHECK(record.number("train/skipped_steps") == skipped);
  }
  CHECK(skipped == std::count(rare.bad.begin(), rare.bad.end(), true));
  CHECK(holds(result.output, {fmt::format("update skipped, {} so far", skipped)}));
  // The held-out text has no such byte: what was trained is finite.
  const auto last = rare.here.metrics().back();
  CHECK(std::isfinite(*last.number(train::metric::kEvalLoss)));
}

TEST_CASE("skip: one more in a row than allowed ends the run, also across a resume") {
  const RareByte rare;
  const std::int64_t allowed = rare.longest_row() - 1;
  REQUIRE(allowed >= 1);
  const std::int64_t end = rare.first_row_of(allowed + 1);
  const std::string message =
      fmt::format("step {}: {} steps in a row were not finite; resilience.max_skipped_steps is {}",
                  end, allowed + 1, allowed);

  const auto result = rare.run({allow(allowed)});
  INFO(result.output);
  CHECK(result.exit_code == 5);
  CHECK(holds(result.output, {message}));

  // Stopped by a signal's save or by a limit in the middle of the row, the count goes on.
  fs::remove_all(rare.here.path / "run");
  const auto first = rare.run({allow(allowed), fmt::format("training.max_steps={}", end - 1)});
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  const auto second = rare.run({allow(allowed)});
  INFO(second.output);
  CHECK(second.exit_code == 5);
  CHECK(holds(second.output, {fmt::format("resumed from step {}", end - 1), message}));
}

TEST_CASE("on an emulated GPU, which has the next step in its queue already, the same holds" *
          doctest::skip(!fs::exists(LLMTRAIN_EMULATED_GPU))) {
  const RareByte rare;
  const std::int64_t first = rare.first_row_of(1), longest = rare.longest_row();
  REQUIRE(first > 1);
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  const auto run = [&](const std::string& policy) {
    fs::remove_all(rare.here.path / "run");
    return rare.run({"run.device=cuda", "checkpoint.interval=1000", policy});
  };

  const auto stopped = run("resilience.on_non_finite=stop");
  INFO(stopped.output);
  CHECK(stopped.exit_code == 5);
  CHECK(holds(stopped.output, {fmt::format("step {}: the loss is not finite (samples {} to {}); "
                                           "resilience.on_non_finite is stop",
                                           first, first - 1, first - 1)}));
  CHECK(rare.here.metrics().back().step == first - 1);
  CHECK(stopped.output.find("saved run") == std::string::npos);

  const auto ended = run(allow(longest - 1));
  INFO(ended.output);
  CHECK(ended.exit_code == 5);
  CHECK(holds(ended.output, {fmt::format("step {}: {} steps in a row were not finite",
                                         rare.first_row_of(longest), longest)}));

  // The step behind a bad one is on the device already, and is given up with it.
  fs::remove_all(rare.here.path / "run");
  const auto back = rare.run({"run.device=cuda", "training.max_steps=12",
                              fmt::format("checkpoint.interval={}", first - 1),
                              "resilience={on_non_finite: rollback, max_rollbacks: 40}"});
  INFO(back.output);
  CHECK(back.exit_code == 0);
  std::int64_t before = 0;
  for (const train::StepRecord& record : rare.here.metrics()) {
    const auto sample = record.number("train/samples");
    if (!sample) continue;
    CHECK(*sample > static_cast<double>(before));
    before = static_cast<std::int64_t>(*sample);
    CHECK_FALSE(rare.bad.at(static_cast<std::size_t>(before)));
  }

  const auto skipped = run(allow(longest));
  INFO(skipped.output);
  REQUIRE(skipped.exit_code == 0);
  CHECK(holds(skipped.output, {"40 steps took memory as planned"}));
  std::int64_t bad = 0;
  for (const train::StepRecord& record : rare.here.metrics()) {
    const auto loss = record.number(train::metric::kLoss);
    if (!loss) continue;
    bad += rare.bad[static_cast<std::size_t>(record.step)];
    CHECK(std::isfinite(*loss) == !rare.bad[static_cast<std::size_t>(record.step)]);
    CHECK(record.number("train/skipped_steps") == bad);
    CHECK(record.number("train/samples") == record.step);
  }
  CHECK(std::isfinite(*rare.here.metrics().back().number(train::metric::kEvalLoss)));
  ::unsetenv("LLMTRAIN_CUDA_PLUGIN");
}

TEST_CASE("an incident names every document of every sample of its step") {
  const Workspace here(kTinyRecipe);
  fs::create_directory(here.path / "texts");
  for (int i = 0; i < 400; ++i)
    here.write(fmt::format("texts/{}.txt", i), "short " + std::to_string(i));
  const auto result = here.run(
      {"optimizer.lr=3", "training.max_steps=12", "training.micro_batch_size=2",
       "training.global_batch_size=10", "data.sources=[{path: texts/}]",
       "resilience={on_loss_spike: stop, loss_spike_window: 1, loss_spike_factor: 1.001}"});
  INFO(result.output);
  REQUIRE(result.exit_code == 5);
  const train::StepRecord incident =
      train::read_metrics(here.path / "run" / "incidents.jsonl").front();
  const auto first = static_cast<std::int64_t>(*incident.number("incident/first_sample"));
  CHECK(*incident.number("incident/last_sample") == first + 9);
  for (std::int64_t sample = first; sample < first + 10; ++sample) {
    CAPTURE(sample);
    const auto* text = incident.find(fmt::format("incident/sample/{}", sample));
    REQUIRE(text != nullptr);
    const std::string& documents = std::get<std::string>(*text);
    CAPTURE(documents);
    CHECK(documents.find(".txt") < documents.find(" | "));
    CHECK(documents.find(".txt", documents.find(" | ")) < documents.size());
  }
}

TEST_CASE("a loss spike is trained on, skipped, left out or ends the run, as the recipe says") {
  const Workspace here(kTinyRecipe);
  const auto run = [&](const std::string& policy) {
    fs::remove_all(here.path / "run");
    std::vector<std::string> keys{"optimizer.lr=3", "training.max_steps=12",
                                  "checkpoint.interval=1", "resilience.on_loss_spike=" + policy};
    if (policy != "ignore") {
      keys.push_back("resilience.loss_spike_window=1");
      keys.push_back("resilience.loss_spike_factor=1.001");
      keys.push_back("resilience.max_skipped_steps=40");
    }
    return here.run(keys);
  };
  const auto incidents = here.path / "run" / "incidents.jsonl";
  const auto ignored = run("ignore");
  CHECK(ignored.exit_code == 0);
  CHECK_FALSE(fs::exists(incidents));

  const auto stopped = run("stop");
  INFO(stopped.output);
  CHECK(stopped.exit_code == 5);
  CHECK(holds(stopped.output, {": the loss is ", ", above ", "resilience.on_loss_spike is stop"}));
  REQUIRE(fs::exists(incidents));
  const train::StepRecord first = train::read_metrics(incidents).front();
  CHECK(*first.number("incident/loss") > *first.number("incident/loss_limit"));
  CHECK(here.last_step() < first.step);

  const auto skipped = run("skip");
  INFO(skipped.output);
  CHECK(skipped.exit_code == 0);
  CHECK(holds(skipped.output,
              {fmt::format("step {}: the loss is ", first.step), "update skipped, 1 so far"}));
  CHECK(here.last_step() == 12);

  const auto back = run("rollback");
  CHECK(holds(back.output, {fmt::format("went back to step {}; samples", first.step - 1)}));
}

TEST_CASE("a model of NaNs is evaluated and sampled from without harm") {
  const Workspace here(kTinyRecipe);

  const auto result = here.run({"optimizer={lr: 1e38, max_grad_norm: null}", allow(5),
                                "eval.sample_prompts=[word]", "eval.sample_tokens=3"});

  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(here.metrics().back().number(train::metric::kEvalLoss).has_value());
}

}  // namespace llmtrain
