// What the recipe says about bad steps (resilience.on_non_finite, on_loss_spike), with a model that
// is NaN, or has a large loss, for one rare byte: a step is bad exactly when one of its samples
// reads that byte.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/corpus.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 40;
constexpr std::int32_t kRareByte = 'Z';
constexpr int kHidden = 16;

// Makes the embedding of the rare byte this in an exported model.
void poison(const fs::path& file, float value) {
  std::string content = read_file(file);
  std::uint64_t header_bytes = 0;
  std::copy_n(content.begin(), 8, reinterpret_cast<char*>(&header_bytes));
  const auto header = nlohmann::json::parse(content.substr(8, header_bytes));
  const std::uint64_t begin = header.at("model.embed_tokens.weight").at("data_offsets").at(0);
  for (int i = 0; i < kHidden; ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(kRareByte) * kHidden + i;
    std::copy_n(
        reinterpret_cast<const char*>(&value), sizeof value,
        content.begin() + static_cast<std::ptrdiff_t>(8 + header_bytes + begin + 4 * element));
  }
  write_file_atomic(file, content);
}

// A workspace whose second source, which is not held out, holds the rare byte.
struct RareByte {
  Workspace here{kTinyRecipe};
  std::vector<std::string> overrides;
  std::vector<bool> bad{false};  // by step, from 1

  explicit RareByte(float embedding = std::nanf("")) {
    int number = 0;
    while (data::is_held_out(name(number), {.modulus = 4, .remainder = 0})) ++number;
    std::string text;
    for (int i = 0; i < 1500; ++i) text += "Z ";
    here.write(name(number), text);
    REQUIRE(here.run().exit_code == 0);
    REQUIRE(here.call({"ckpt", "export", "run", "poisoned"}).exit_code == 0);
    poison(here.path / "poisoned" / "model.safetensors", embedding);
    fs::remove_all(here.path / "run");
    const auto sources = [&](const std::string& folder) {
      return fmt::format(
          "data.sources=[{{path: {}text.txt, max_document_bytes: 1024}}, {{path: {}{}, "
          "max_document_bytes: 0}}]",
          folder, folder, name(number));
    };
    overrides = {"model.init_from=poisoned",     "training.micro_batch_size=1",
                 "training.global_batch_size=1", "lr_scheduler={type: constant, warmup: 0}",
                 "checkpoint.interval=1",        "eval.interval=null",
                 "training.max_steps=40"};
    std::vector<std::string> elsewhere = overrides;
    overrides.push_back(sources(""));
    elsewhere.push_back(sources(here.path.string() + "/"));
    elsewhere.push_back("data.cache_dir=" + (here.path / "other-cache").string());
    find_bad_steps(elsewhere);
  }

  static std::string name(int number) { return fmt::format("z{}.txt", number); }

  void find_bad_steps(const std::vector<std::string>& with) {
    const auto recipe = train::load_recipe(here.path / "recipe.yaml", with);
    const train::Corpus corpus = train::open_corpus(*recipe);
    const data::SampleStream stream(corpus.parts.front().training, recipe->run.seed());
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(kSteps); ++i) {
      const data::Sample sample = stream.sample_at(i);
      bad.push_back(std::count(sample.tokens.begin(), sample.tokens.end(), kRareByte) > 0);
    }
  }

  // The step at which `length` bad ones in a row are reached first; 0 if never.
  std::int64_t first_row_of(std::int64_t length) const {
    std::int64_t row = 0;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      row = bad[static_cast<std::size_t>(step)] ? row + 1 : 0;
      if (row == length) return step;
    }
    return 0;
  }

  std::int64_t longest_row() const {
    std::int64_t length = 0;
    while (first_row_of(length + 1) > 0) ++length;
    return length;
  }

  test::ProcessResult run(const std::vector<std::string>& more) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return here.run(all);
  }
};

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

// The samples of each step of a run that goes back at each bad one, where it saves after every
// step.
std::vector<std::int64_t> good_samples(const RareByte& rare) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 1; i <= kSteps; ++i) {
    if (!rare.bad[static_cast<std::size_t>(i)]) samples.push_back(i);
  }
  return samples;
}

TEST_CASE("rollback: the run goes back to its newest checkpoint and leaves the samples out") {
  const RareByte rare;
  const std::int64_t longest = rare.longest_row();
  const std::vector<std::int64_t> good = good_samples(rare);
  const std::int64_t first = rare.first_row_of(1);
  REQUIRE(first > 1);
  const auto steps = fmt::format("training.max_steps={}", good.size());
  const auto policy =
      fmt::format("resilience={{on_non_finite: rollback, max_rollbacks: {}}}", longest);

  const auto result = rare.run({policy, steps});

  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(holds(result.output,
              {fmt::format("step {}: the loss is not finite (samples {} to {}): went back to step "
                           "{}; samples {} to {} are left out",
                           first, first - 1, first - 1, first - 1, first - 1, first - 1)}));
  std::vector<std::int64_t> samples;
  for (const train::StepRecord& record : rare.here.metrics()) {
    const auto number = record.number("train/samples");
    if (!number) continue;
    CHECK(record.step == std::ssize(samples) + 1);
    samples.push_back(static_cast<std::int64_t>(*number));
  }
  CHECK(samples == good);
  const auto incidents = train::read_metrics(rare.here.path / "run" / "incidents.jsonl");
  CHECK(std::ssize(incidents) + std::ssize(good) == good.back());
  const auto& incident = incidents.at(0);
  CHECK(incident.step == first);
  CHECK(incident.number("incident/first_sample") == first - 1);
  const auto* text = incident.find(fmt::format("incident/sample/{}", first - 1));
  REQUIRE(text != nullptr);
  CHECK(std::get<std::string>(*text).find("Z Z") != std::string::npos);
  CHECK(std::get<std::string>(*text).find(".txt") != std::string::npos);
  CHECK(holds(read_file(rare.here.path / "run" / "report.html"), {"went back to step", "Z Z"}));
}

TEST_CASE("rollback: killed before its next save, a run comes to the same end by the same way") {
  const RareByte rare;
  const std::int64_t first = rare.first_row_of(1);
  REQUIRE(first > 1);
  // A save right before the first bad step, and the next one some steps behind it.
  const auto until_bad = [&] {
    fs::remove_all(rare.here.path / "run");
    const auto good = rare.run({fmt::format("training.max_steps={}", first - 1),
                                fmt::format("checkpoint.interval={}", first - 1)});
    INFO(good.output);
    REQUIRE(good.exit_code == 0);
  };
  const std::vector<std::string> keys{"resilience={on_non_finite: rollback, max_rollbacks: 1000}",
                                      "checkpoint.interval=3", "training.max_steps=12"};
  until_bad();
  const auto unhurt = rare.run(keys);
  INFO(unhurt.output);
  REQUIRE(unhurt.exit_code == 0);
  const auto print = fingerprint(rare.here.path, 12);

  until_bad();
  std::vector<std::string> all = rare.overrides;
  all.insert(all.end(), keys.begin(), keys.end());
  const auto killed =
      rare.here.run(all, {.signal = SIGKILL, .signal_after = ": went back to step "});
  CHECK(killed.exit_code != 0);
  const auto again = rare.run(keys);
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(fingerprint(rare.here.path, 12) == print);
}

TEST_CASE("rollback: a run without a checkpoint stops, and so does one that goes back too often") {
  const RareByte rare;
  const auto none = rare.run({"resilience.on_non_finite=rollback", "checkpoint.interval=1000"});
  INFO(none.output);
  CHECK(none.exit_code == 5);
  CHECK(holds(none.output, {"there is no checkpoint yet"}));

  fs::remove_all(rare.here.path / "run");
  const std::int64_t longest = rare.longest_row();
  REQUIRE(longest >= 2);
  const auto often = rare.run(
      {fmt::format("resilience={{on_non_finite: rollback, max_rollbacks: {}}}", longest - 1)});
  INFO(often.output);
  CHECK(often.exit_code == 5);
  CHECK(holds(often.output,
              {fmt::format("the run went back {} times since its last save", longest - 1)}));
}

// Steps of a rate far too high: the loss rises sooner or later.
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
