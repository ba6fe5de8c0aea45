// A run is asked to save or to stop wherever it is: in an evaluation, while it prepares data, in a
// step, by files in its directory, by the end of its job's time.
#include <csignal>
#include <fstream>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_status.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

/// `script` by a shell here, where $LLMTRAIN is the executable.
test::ProcessResult shell(const Workspace& here, const std::string& script) {
  return test::run_process(
      {"/bin/bash", "-c", fmt::format("LLMTRAIN={}\n{}", LLMTRAIN_EXECUTABLE, script)}, here.path,
      {.limit_seconds = 120});
}

bool has_evaluation(const Workspace& here, std::int64_t step) {
  for (const train::StepRecord& record : here.metrics()) {
    if (record.step == step && record.find(train::metric::kEvalLoss) != nullptr) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a signal in an evaluation: it is given up, and made by the next start") {
  // Each held-out token is a window of its own.
  std::vector<std::string> overrides{"eval.stride=1", "eval.interval=2",
                                     "checkpoint.interval=null"};
  for (const std::string& at : {std::string("   2/6"), std::string("   6/6")}) {
    CAPTURE(at);
    const std::int64_t step = at[3] - '0';
    const Workspace whole(kTinyRecipe);
    REQUIRE(whole.run(overrides).exit_code == 0);
    const Workspace part(kTinyRecipe);
    const auto stopped = part.run(overrides, {.signal = SIGTERM, .signal_after = at});
    INFO(stopped.output);
    REQUIRE(stopped.exit_code == 75);
    CHECK(holds(stopped.output, {fmt::format("stopped by signal 15 after step {};", step)}));
    CHECK(!has_evaluation(part, step));
    const auto resumed = part.run(overrides);
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    CHECK(has_evaluation(part, step));
    CHECK(fingerprint(part.path, 6) == fingerprint(whole.path, 6));
  }
}

TEST_CASE("a signal while data are prepared or a tokenizer is trained: nothing is lost, 75") {
  const Workspace here(kTinyRecipe);
  {
    std::ofstream text(here.path / "text.txt");
    for (std::int64_t i = 0; i < 400'000; ++i)
      text << "word" << i * 7919 % 60'013 << (i % 9 == 8 ? "\n" : " ");
  }
  const std::vector<std::string> small{"data.shard_size=4KiB"};
  const auto preparing = here.run(small, {.signal = SIGUSR1, .signal_after = "tokenising"});
  INFO(preparing.output);
  CHECK(preparing.exit_code == 75);
  CHECK(
      holds(preparing.output, {"stopped by signal 10 while preparing the data; nothing is lost"}));
  CHECK(train::read_status(here.path / "run")->phase == "stopped");
  const auto of_array = shell(
      here,
      "$LLMTRAIN data prepare recipe.yaml --shard 0/1 data.shard_size=4KiB data.cache_dir=other & "
      "p=$!\nuntil ls other/tokens-*/shard-* >/dev/null 2>&1; do sleep 0.02; done\n"
      "kill -TERM $p; wait $p; echo code $?");
  INFO(of_array.output);
  CHECK(holds(of_array.output, {"while preparing the data", "code 75"}));

  const auto asked = shell(
      here,
      "$LLMTRAIN run recipe.yaml data.cache_dir=third data.shard_size=64KiB run.output_dir=asked > "
      "out "
      "& p=$!\nuntil ls third/tokens-*/shard-* >/dev/null 2>&1; do sleep 0.02; done\n"
      "mkdir -p asked/control; touch asked/control/stop; [ -e asked/metrics.jsonl ] || echo early\n"
      "wait $p; echo code $?; tail -n 1 out");
  INFO(asked.output);
  CHECK(holds(asked.output, {"early\n", "code 0\n", "stopped by control/stop after step 0;"}));

  const std::vector<std::string> bpe{"tokenizer={type: bpe, vocab_size: 60000}",
                                     "model.vocab_size=60000", "training.max_steps=1"};
  const auto training = shell(
      here,
      fmt::format("$LLMTRAIN run recipe.yaml '{}' & p=$!; while ! [ -e run/logs/rank-0.log ]; do "
                  "sleep 0.02; done; sleep 0.2; kill -TERM $p; wait $p; echo code $?",
                  fmt::join(bpe, "' '")));
  INFO(training.output);
  CHECK(holds(training.output, {"code 75"}));
}

TEST_CASE("a second SIGINT leaves at once, whatever the run is at") {
  const Workspace here(kTinyRecipe);
  // One step of many seconds, in which nobody looks.
  const auto result =
      shell(here,
            "$LLMTRAIN run recipe.yaml training.global_batch_size=65536 & p=$!\n"
            "while ! grep -q '\"training\"' run/status.json 2>/dev/null; do sleep 0.05; done\n"
            "sleep 0.5; kill -INT $p; sleep 0.5; kill -0 $p && echo waits; kill -INT $p\n"
            "SECONDS=0; wait $p; echo code $?; [ $SECONDS -le 2 ] && echo at once");
  INFO(result.output);
  CHECK(holds(result.output, {"waits\n", "code 130\n", "at once\n"}));
}

TEST_CASE("a signal before the run has begun, or while its job's layout is looked at: 75") {
  const Workspace here(kTinyRecipe);
  // They wait for processes that do not come.
  const auto result =
      shell(here,
            "export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1\n"
            "MASTER_PORT=20917 $LLMTRAIN run recipe.yaml & r=$!\n"
            "MASTER_PORT=20918 $LLMTRAIN doctor recipe.yaml & d=$!\n"
            "sleep 1; kill -USR1 $r $d; wait $r; echo run $?; wait $d; echo doctor $?");
  INFO(result.output);
  CHECK(holds(result.output, {"stopped by a signal before the run began", "run 75", "doctor 75"}));
}

TEST_CASE("control/save saves at once; control/stop saves and ends with 0") {
  const Workspace here(kTinyRecipe);
  const auto result =
      shell(here,
            "$LLMTRAIN run recipe.yaml training.max_steps=10000000 checkpoint.interval=null "
            "eval.interval=null > out & p=$!\n"
            "mkdir -p run/control; while ! [ -e run/metrics.jsonl ]; do sleep 0.05; done\n"
            "touch run/control/save; while [ -e run/control/save ]; do sleep 0.05; done\n"
            "until ls run/checkpoints/step-* > saved; do sleep 0.05; done\n"
            "$LLMTRAIN status run && kill -0 $p && echo goes on\n"
            "touch run/control/stop; wait $p; echo code $?; tail -n 1 out; $LLMTRAIN status run");
  INFO(result.output);
  CHECK(holds(result.output, {"alive: process ", "goes on", "code 0",
                              "stopped by control/stop after step", "run: stopped, step "}));
  CHECK(!fs::exists(here.path / "run" / "control" / "stop"));
  CHECK(!holds(result.output, {"cannot be removed"}));
  CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);
  CHECK(here.call({"status", "run"}).exit_code == 0);
}

TEST_CASE("a job whose time ends while it trains is saved, and ends with 75") {
  const Workspace here(kTinyRecipe);
  const auto result =
      shell(here,
            "SLURM_JOB_ID=5 SLURM_JOB_END_TIME=$(($(date +%s) + 9)) $LLMTRAIN run recipe.yaml "
            "training.max_steps=10000000 eval.interval=null checkpoint.interval=null "
            "resilience.exit_margin=1s | tail -n 3; echo code ${PIPESTATUS[0]}");
  INFO(result.output);
  CHECK(holds(result.output, {"stopped by the end of its job's time, in ", " s after step ",
                              "; state saved", "code 75"}));
  CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);
}

TEST_CASE("samples: the end of the job's time and control/stop are heard between two tokens") {
  const Workspace here(kTinyRecipe);
  // More than any test has time for.
  std::string prompts = "a";
  for (int i = 0; i < 20000; ++i) prompts += ", a";
  here.write("samples.yaml", fmt::format("include: [recipe.yaml]\n"
                                         "eval: {{interval: 2, max_samples: 1, sample_tokens: 40, "
                                         "sample_prompts: [{}]}}\n"
                                         "checkpoint: {{interval: null}}\n",
                                         prompts));
  const auto by_time =
      shell(here,
            "SLURM_JOB_ID=5 SLURM_JOB_END_TIME=$(($(date +%s) + 8)) $LLMTRAIN run samples.yaml "
            "resilience.exit_margin=1s | tail -n 3; echo code ${PIPESTATUS[0]}");
  INFO(by_time.output);
  CHECK(
      holds(by_time.output, {"stopped by the end of its job's time", "after step 2;", "code 75"}));
  const auto by_file = shell(
      here,
      "$LLMTRAIN run samples.yaml run.output_dir=other > log & pid=$!; "
      "for i in $(seq 300); do grep -q evaluating other/status.json 2> /dev/null && break; "
      "sleep 0.1; done; sleep 1; mkdir -p other/control; touch other/control/stop; wait $pid; "
      "echo code $?; tail -n 3 log");
  INFO(by_file.output);
  CHECK(holds(by_file.output, {"code 0", "stopped by control/stop after step 2;"}));
}

TEST_CASE("a start that waits for the lock of a directory ends when it is asked to") {
  const Workspace here(kTinyRecipe);
  fs::create_directories(here.path / "run" / "checkpoints");
  here.write("run/checkpoints/lock", R"({"host": "elsewhere", "pid": 12, "start_ticks": 1})");
  const auto result = shell(here,
                            "flock run/checkpoints/lock sleep 60 & holder=$!; sleep 0.5; "
                            "$LLMTRAIN run recipe.yaml > log 2>&1 & pid=$!; "
                            "for i in $(seq 100); do grep -q 'waits for a process' log && break; "
                            "sleep 0.1; done; kill -TERM $pid; wait $pid; echo code $?; cat log; "
                            "kill $holder");
  INFO(result.output);
  CHECK(holds(result.output, {"code 75", "waiting for the directory's lock; nothing is lost"}));
}

TEST_CASE("SIGQUIT: the stacks of all threads go to the rank's log, and the run goes on") {
  const Workspace here(kTinyRecipe);
  const auto result = here.run({"training.max_steps=400", "eval.interval=null"},
                               {.signal = SIGQUIT, .signal_after = "   5/400"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
  const std::string log = read_file(here.path / "run" / "logs" / "rank-0.log");
  CHECK(holds(log, {"asked by SIGQUIT"}));
  CHECK(here.metrics().back().step == 400);
}

TEST_CASE(
    "a job whose time is over before its data are prepared ends with 75, and with 93 when it comes "
    "no further") {
  const Workspace here(kTinyRecipe);
  const auto start = [&](int restarts, std::string_view margin) {
    return shell(here, fmt::format("SLURM_JOB_ID=5 SLURM_RESTART_COUNT={} "
                                   "SLURM_JOB_END_TIME=$(($(date +%s) + 1000)) $LLMTRAIN run "
                                   "recipe.yaml resilience.exit_margin={}",
                                   restarts, margin));
  };
  const auto first = start(0, "1h");
  INFO(first.output);
  REQUIRE(first.exit_code == 75);
  CHECK(holds(first.output, {"stopped by the end of its job's time while starting; "
                             "nothing is lost, run again to continue"}));
  CHECK(!fs::exists(here.path / ".cache"));
  CHECK(train::read_status(here.path / "run")->phase == "stopped");
  for (int restarts = 1; restarts <= 3; ++restarts) REQUIRE(start(restarts, "1h").exit_code == 75);
  const auto last = start(4, "1h");
  INFO(last.output);
  CHECK(last.exit_code == 93);
  CHECK(holds(last.output,
              {"job 5 was started 4 times before and came never beyond the start, nor were more "
               "data prepared; resilience.max_restarts_without_progress is 3"}));
  const auto status = here.call({"status", "run"});
  CHECK(status.exit_code == 93);
  CHECK(holds(status.output, {"failed\n", "with exit code 93: job 5 was started 4 times"}));
  // Another job, or a person, may go on.
  CHECK(here.run().exit_code == 0);
}

TEST_CASE("status tells a dead run, a living one, and what is none") {
  const Workspace here(kTinyRecipe);
  CHECK(here.call({"status", "run"}).exit_code == 2);
  CHECK(
      holds(here.call({"status", "recipe.yaml"}).output, {"recipe.yaml: not a directory; give "}));
  const auto result =
      shell(here,
            "$LLMTRAIN run recipe.yaml training.max_steps=10000000 > out & p=$!\n"
            "while ! grep -q '\"training\"' run/status.json 2>/dev/null; do sleep 0.05; done\n"
            "$LLMTRAIN status run; echo code $?; kill -KILL $p; wait $p; $LLMTRAIN status run; "
            "echo code $?");
  INFO(result.output);
  const std::size_t killed = result.output.find("dead: process ");
  REQUIRE(killed != std::string::npos);
  CHECK(holds(result.output.substr(0, killed), {"alive: process ", "code 0"}));
  CHECK(holds(result.output.substr(killed), {"code 6"}));
  REQUIRE(here.run({"training.max_steps=10"}).exit_code == 0);
  CHECK(holds(here.call({"status", "run"}).output, {"done, step ", "2 starts, "}));
}

TEST_CASE("status tells of a start that failed before the run began, and why") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  const auto fails = [&](const std::vector<std::string>& overrides, int code,
                         const std::string& why) {
    CHECK(here.run(overrides).exit_code == code);
    const auto status = here.call({"status", "run"});
    INFO(status.output);
    CHECK(status.exit_code == code);
    CHECK(holds(status.output, {"run: failed", fmt::format("with exit code {}: ", code), why,
                                "last checkpoint: step 6"}));
    CHECK(!holds(status.output, {"done"}));
  };
  fails({"checkpoint.resume=never"}, 2, "checkpoint.resume is never");
  fails({"checkpoint.local={directory: run/fast, interval: 1}"}, 2, "is in run.output_dir");
  fails({"model.intermediate_size=64"}, 4, "but this run needs");
  here.write("text.txt", "");
  fails({"data.cache_dir=anew"}, 4, "text.txt");
  CHECK(holds(read_file(here.path / "run" / "logs" / "rank-0.log"), {"run.output_dir"}));
}

TEST_CASE("a start that is refused leaves status and logs to the run that has the directory") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  const fs::path run = here.path / "run";
  write_file_atomic(run / "checkpoints" / "lock",
                    R"({"host": "elsewhere", "pid": 12, "start_ticks": 1})");
  const std::string status = read_file(run / "status.json");
  const std::string log = read_file(run / "logs" / "rank-0.log");
  const auto refused = here.run();
  INFO(refused.output);
  CHECK(refused.exit_code == 7);
  CHECK(holds(refused.output, {"held by process 12 on host elsewhere"}));
  CHECK(read_file(run / "status.json") == status);
  CHECK(read_file(run / "logs" / "rank-0.log") == log);
  CHECK(train::read_starts(run).size() == 1);
}

TEST_CASE("what a run leaves to be looked at: starts, a log, its environment") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const fs::path run = here.path / "run";
  CHECK(train::read_starts(run).size() == 1);
  CHECK(holds(read_file(run / "logs" / "rank-0.log"),
              {" start on ", ", process ", " determinism: run\n",
               " saved run/checkpoints/step-00000006 ("}));
  CHECK(holds(
      read_file(run / "environment.json"),
      {"\"commit\"", "\"ranks\"", "\"instruction_set\"", "\"OMP_WAIT_POLICY\": \"passive\""}));
}

}  // namespace llmtrain
