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
  CHECK(!read_status(scratch.path()));                     // nobody has the directory
  write_file_atomic(scratch / "status.json.tmp-77", "{");  // of a process that was killed
  file.open(scratch.path(), this_start());
  CHECK(!std::filesystem::exists(scratch / "status.json.tmp-77"));
  CHECK(read_status(scratch.path())->phase == "starting");
  CHECK(file.last_step() == 0);
  file.begin(40, 4, 17);
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

TEST_CASE("a process that has ended, and that nobody has waited for, is dead") {
  const test::TempDir scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    StatusFile file;
    file.watch([&]() -> ExitCode {
      file.open(scratch.path(), this_start());
      ::_exit(0);
    });
  }
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(life_of(*read_status(scratch.path()), unix_time()) == Life::dead);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("a start that fails before it begins says so, and leaves what the next one counts from") {
  const test::TempDir scratch;
  RunStatus before{.phase = "done", .step = 50, .total_steps = 60, .exit_code = 0};
  before.checkpoint_step = 48;
  before.starts = 3;
  before.lost_steps = 5;
  write_file_atomic(scratch / "status.json", to_json(before));
  for (int i = 0; i < 2; ++i) {
    StatusFile file;
    CHECK_THROWS_AS(file.watch([&]() -> ExitCode {
      file.open(scratch.path(), this_start());
      const RunStatus now = *read_status(scratch.path());
      CHECK(now.phase == "starting");
      CHECK(!now.has_ended());
      CHECK(now.pid == ::getpid());
      CHECK(file.last_step() == 50);
      fail<RecipeError>("refused");
    }),
                    RecipeError);
    const RunStatus ended = *read_status(scratch.path());
    CHECK(ended.phase == "failed");
    CHECK(ended.exit_code == 2);
    CHECK(ended.message == "refused");
    CHECK(ended.step == 50);
    CHECK(ended.checkpoint_step == 48);
    CHECK(ended.starts == 3);
    CHECK(ended.lost_steps == 5);
  }
  StatusFile refused;  // it never had the directory
  CHECK_THROWS_AS(refused.watch([]() -> ExitCode { fail<StorageError>("held by another"); }),
                  StorageError);
  CHECK(read_status(scratch.path())->message == "refused");
}

TEST_CASE("an exit code that no process can have is refused") {
  const std::string ended = to_json({.phase = "done", .exit_code = 7});
  constexpr std::string_view kCode = "\"exit_code\": 7";
  REQUIRE(ended.find(kCode) != std::string::npos);
  for (const int code : {-1, 256, 0, 255}) {
    std::string text = ended;
    text.replace(text.find(kCode), kCode.size(), fmt::format("\"exit_code\": {}", code));
    CAPTURE(text);
    if (code >= 0 && code <= 255) {
      CHECK(parse_status(text, "status.json").exit_code == code);
    } else {
      CHECK_THROWS_AS(parse_status(text, "status.json"), DataError);
    }
  }
}

TEST_CASE("a status sends nothing to the terminal but text") {
  RunStatus status{.phase = "train\x1b[2J", .exit_code = 4};
  status.host = "h\x1b]0;x\x07";
  status.job =
      "\xC2\x9B"
      "5";
  status.message = "one\nalive: process 1\x1b[1m";
  status.updated = -1e300;
  const std::string ended = describe(status, 100);
  CAPTURE(ended);
  CHECK(ended.find("train\\x1b[2J\n") == 0);
  CHECK(ended.find("exit code 4: one\n  alive: process 1\\x1b[1m\n") != std::string::npos);
  CHECK(to_json(status).find("\xC2\x9B") == std::string::npos);
  status.exit_code.reset();
  status.eta_seconds = 1e300;
  status.started = 1e300;
  for (const std::string& text : {ended, describe(status, 100), to_json(status)}) {
    CHECK(text.find_first_of("\x1b\x07") == std::string::npos);
    CHECK(text.find("\xC2\x9B") == std::string::npos);
  }
}

TEST_CASE("what is no run's directory is said with the remedy") {
  const test::TempDir scratch;
  const auto refuses = [](const std::filesystem::path& path, const char* why, ExitCode code) {
    CAPTURE(path);
    std::string said;
    try {
      status_of_run(path);
    } catch (const Error& error) {
      said = error.what();
      CHECK(error.exit_code() == code);
    }
    CAPTURE(said);
    CHECK(said.find(why) != std::string::npos);
    CHECK(said.find("give the run.output_dir of a run") != std::string::npos);
    CHECK(said.find('\x1b') == std::string::npos);
  };
  refuses(scratch / "none", "there is no such directory", ExitCode::recipe);
  refuses(scratch.path(), "it has no status.json", ExitCode::recipe);
  write_file_atomic(scratch / "file", "");
  refuses(scratch / "file", "not a directory", ExitCode::recipe);
  std::filesystem::create_symlink("loop", scratch / "loop");
  refuses(scratch / "loop", "cannot be looked at: ", ExitCode::recipe);
  write_file_atomic(scratch / "status.json", "{\"phase\": \"\x1b[2J");
  refuses(scratch.path(), "no status of a run", ExitCode::invalid_data);
  std::filesystem::remove(scratch / "status.json");
  std::filesystem::create_symlink("status.json", scratch / "status.json");
  refuses(scratch.path(), "status.json: cannot be read: ", ExitCode::invalid_data);
  std::filesystem::remove(scratch / "status.json");
  std::filesystem::create_directory(scratch / "status.json");
  refuses(scratch.path(), "not a regular file", ExitCode::invalid_data);
}

TEST_CASE("a dead run is told from a living one, and from one that was stopped") {
  const test::TempDir scratch;
  const pid_t child = ::fork();
  if (child == 0) {
    StatusFile file;
    Start start = this_start();
    start.pid = ::getpid();
    file.open(scratch.path(), start);
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
