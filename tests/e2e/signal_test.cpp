// 75: a run that is asked to stop saves its state, and goes on from there as if it had not been.
#include <csignal>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

// More output than the pipe holds, so that the run cannot end before the signal comes.
constexpr int kSteps = 400;
const std::vector<std::string> kLong{"training.max_steps=400", "checkpoint.interval=150",
                                     "eval.interval=100", "eval.max_samples=4"};

std::int64_t saved_step(const std::string& output) {
  const std::string_view mark = "state saved";
  REQUIRE(output.find(mark) != std::string::npos);
  const std::size_t at = output.find("after step ");
  REQUIRE(at != std::string::npos);
  return std::stoll(output.substr(at + 11));
}

}  // namespace

TEST_CASE(
    "SIGTERM, SIGUSR1, SIGUSR2, SIGINT and SIGHUP: saved, 75, and the next start ends with the "
    "same "
    "weights") {
  const Workspace whole(kTinyRecipe);
  REQUIRE(whole.run(kLong).exit_code == 0);
  const std::string expected = fingerprint(whole.path, kSteps);

  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP}) {
    CAPTURE(signal);
    const Workspace part(kTinyRecipe);
    const auto stopped = part.run(kLong, {.signal = signal, .signal_after = "   5/400"});
    INFO(stopped.output);
    REQUIRE(stopped.exit_code == 75);
    CHECK(holds(stopped.output, {fmt::format("stopped by signal {}", signal), "run again to"}));
    const std::int64_t step = saved_step(stopped.output);
    CHECK(step >= 5);
    CHECK(step < kSteps);

    const auto resumed = part.run(kLong);
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    CHECK(holds(resumed.output, {fmt::format("resumed from step {}\n", step)}));
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("a run whose output nobody reads any more goes on to its end") {
  const Workspace here(kTinyRecipe);
  const std::string command =
      fmt::format("({} run recipe.yaml training.max_steps=400 2>errors; echo $? >code) | head -n 3",
                  LLMTRAIN_EXECUTABLE);
  const auto result = test::run_process({"/bin/sh", "-c", command}, here.path, {});
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(read_file(here.path / "code") == "0\n");
  const std::string errors = read_file(here.path / "errors");
  INFO(errors);
  CHECK(holds(errors, {"nothing more is printed", "metrics.jsonl has all steps"}));
  CHECK(here.metrics().back().step == 400);
}

TEST_CASE("a signal during set-up: nothing is done twice by the next start") {
  std::vector<std::string> overrides = kLong;
  for (const char* more :
       {"eval.at_start=true", "eval.sample_prompts=[word]", "eval.sample_tokens=3"}) {
    overrides.emplace_back(more);
  }
  const Workspace whole(kTinyRecipe);
  REQUIRE(whole.run(overrides).exit_code == 0);
  const Workspace part(kTinyRecipe);
  const auto stopped = part.run(overrides, {.signal = SIGTERM, .signal_after = "determinism: "});
  INFO(stopped.output);
  REQUIRE(stopped.exit_code == 75);
  const std::int64_t step = saved_step(stopped.output);

  const auto resumed = part.run(overrides);
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  CHECK(holds(resumed.output, {fmt::format("resumed from step {}\n", step)}));
  CHECK(fingerprint(part.path, kSteps) == fingerprint(whole.path, kSteps));
  const auto texts = [](const Workspace& here) {
    return read_file(here.path / "run" / "samples.jsonl");
  };
  CHECK(texts(part) == texts(whole));
}

}  // namespace llmtrain
