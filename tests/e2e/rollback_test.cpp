// Ways back of runs with bad steps (resilience: rollback): rare_byte.hpp.
#include <csignal>
#include <filesystem>

#include "tests/e2e/rare_byte.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

// The samples of each step of a run that goes back at each bad one, where it saves after every
// step.
std::vector<std::int64_t> good_samples(const RareByte& rare) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 1; i <= kSteps; ++i) {
    if (!rare.bad[static_cast<std::size_t>(i)]) samples.push_back(i);
  }
  return samples;
}

}  // namespace

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
  CHECK(incident.number("incident/left_out_from") == first - 1);
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

namespace {

// A bad step behind `last` good ones, of which `saved`, but not the last, is a multiple of
// `interval`; where all before were saved and left out.
struct BadStep {
  std::int64_t interval = 0, saved = 0, last = 0;
};

BadStep find_bad_step(const std::vector<std::int64_t>& good) {
  for (std::int64_t interval = 2; interval < 6; ++interval) {
    for (std::int64_t last = interval + 1; last < std::ssize(good); ++last) {
      const std::int64_t saved = last / interval * interval;
      const auto sample = [&](std::int64_t step) {
        return good[static_cast<std::size_t>(step - 1)];
      };
      const bool is_even = sample(last) - sample(saved) == last - saved;
      if (last > saved && is_even && sample(last + 1) - sample(last) > 1) {
        return {interval, saved, last};
      }
    }
  }
  return {};
}

}  // namespace

TEST_CASE("rollback: a save that somebody asked for takes a run no other way back") {
  const RareByte rare;
  const BadStep bad = find_bad_step(good_samples(rare));
  REQUIRE(bad.interval > 0);
  const auto run = [&](std::int64_t interval, std::int64_t steps) {
    const auto result = rare.run({"resilience={on_non_finite: rollback, max_rollbacks: 1000}",
                                  fmt::format("checkpoint.interval={}", interval),
                                  fmt::format("training.max_steps={}", steps)});
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    return result.output;
  };
  std::string print;
  for (const bool is_asked_for : {false, true}) {
    fs::remove_all(rare.here.path / "run");
    run(1, bad.saved);
    if (is_asked_for) run(bad.interval, bad.last);  // whose last step is saved
    const std::string output = run(bad.interval, bad.last + 1);
    INFO(output);
    CHECK(holds(output, {fmt::format("resumed from step {}", is_asked_for ? bad.last : bad.saved),
                         fmt::format("went back to step {};", bad.saved)}));
    // A later start goes on from what the new way has saved, whatever has a higher number.
    bool is_aside = false;
    for (const auto& entry : fs::directory_iterator(rare.here.path / "run" / "checkpoints")) {
      const std::string mark = fmt::format("step-{:08}.aside-", bad.last);
      is_aside = is_aside || entry.path().filename().string().starts_with(mark);
    }
    CHECK(is_aside == is_asked_for);
    const auto now = fingerprint(rare.here.path, static_cast<std::uint64_t>(bad.last + 1));
    if (is_asked_for) CHECK(now == print);
    print = now;
  }
}

}  // namespace llmtrain
