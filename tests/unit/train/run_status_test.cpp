#include "lib/train/run_status.hpp"

#include <chrono>
#include <cmath>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/plan/machine.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

Start this_start() {
  return {.time = unix_time(),
          .host = plan::machine_facts().host,
          .pid = ::getpid(),
          .ranks = 2,
          .job = "12",
          .restarts = 1,
          .step = 40,
          .lost_steps = 3};
}

template <class Condition>
bool within(double seconds, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace

TEST_CASE("a status is read as it was written") {
  RunStatus status{.phase = "training", .step = 3, .total_steps = 10};
  status.tokens = 5;
  status.loss = 1.25;
  status.host = "n1";
  status.job = "12";
  status.message = "line\n\"quoted\"";
  const std::string text = to_json(status);
  CHECK(to_json(parse_status(text, "s")) == text);
  status.checkpoint_step = 2;
  status.exit_code = 75;
  status.loss = std::nan("");
  CHECK(!parse_status(to_json(status), "s").loss);
  const std::string ended = to_json(status);
  CHECK(to_json(parse_status(ended, "s")) == ended);
  for (const std::string& wrong :
       {std::string(), std::string("{}"), std::string("[1]"), text.substr(0, text.size() / 2),
        std::string(100'000, '['), std::string("{\"phase\": 5}")}) {
    CHECK_THROWS_AS(parse_status(wrong, "s"), DataError);
  }
}

TEST_CASE("status.json follows the run, and says how it ended") {
  const test::TempDir scratch;
  CHECK(!read_status(scratch.path()));
  StatusFile file;
  file.enter("training");
  CHECK(!read_status(scratch.path()));                     // it has not begun
  write_file_atomic(scratch / "status.json.tmp-77", "{");  // of a process that was killed
  file.begin(scratch.path(), this_start(), 4, 17);
  CHECK(!std::filesystem::exists(scratch / "status.json.tmp-77"));
  CHECK(read_status(scratch.path())->phase == "setting up");
  file.length(100);
  file.enter("training");
  file.at_step(50);
  StepRecord record{.step = 50, .fields = {}};
  record.set(metric::kLoss, 2.5);
  record.set(metric::kTokens, std::int64_t{800});
  file.add(record);
  file.saved(50);
  REQUIRE(within(10, [&] { return read_status(scratch.path())->phase == "training"; }));
  const RunStatus now = *read_status(scratch.path());
  CHECK(now.step == 50);
  CHECK(now.total_steps == 100);
  CHECK(now.loss == 2.5);
  CHECK(now.tokens == 800);
  CHECK(now.checkpoint_step == 50);
  CHECK(life_of(now, unix_time()) == Life::alive);
  const std::string text = describe(now, unix_time());
  for (const char* part : {"training, step 50 of 100 (50.0 %), loss 2.5000", "alive: process ",
                           "job 12, first of 2 ranks", "last checkpoint: step 50",
                           "4 starts, 17 steps were made twice"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK_THROWS_AS(file.watch([]() -> ExitCode { fail<StorageError>("disk is full"); }),
                  StorageError);
  const RunStatus ended = *read_status(scratch.path());
  CHECK(ended.phase == "failed");
  CHECK(ended.exit_code == 7);
  CHECK(life_of(ended, unix_time()) == Life::ended);
  CHECK(describe(ended, unix_time()).find("exit code 7: disk is full") != std::string::npos);
}

TEST_CASE("a dead run is told from a living one, and from one that was stopped") {
  const test::TempDir scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    StatusFile file;
    Start start = this_start();
    start.pid = ::getpid();
    file.begin(scratch.path(), start, 1, 0);
    ::pause();
  }
  REQUIRE(within(10, [&] { return read_status(scratch.path()).has_value(); }));
  RunStatus status = *read_status(scratch.path());
  CHECK(life_of(status, status.updated + 1) == Life::alive);
  CHECK(life_of(status, status.updated + kSilenceSeconds + 1) == Life::silent);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(life_of(status, status.updated + 1) == Life::dead);
  // Somebody else has its number now.
  status.pid = ::getpid();
  CHECK(life_of(status, status.updated + 1) == Life::dead);
  status.host = "another";
  CHECK(life_of(status, status.updated + 1) == Life::alive);
  CHECK(life_of(status, status.updated + kSilenceSeconds + 1) == Life::missing);
}

}  // namespace llmtrain::train
