// What a start finds, and does not: damaged checkpoints, leftovers of killed ones, little room.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/starts.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

fs::path step_in(const fs::path& run, int step) {
  return run / "checkpoints" / fmt::format("step-{:08}", step);
}

// Turns over a bit of the last tensor of a step.
void damage(const fs::path& run, int step) {
  const fs::path shard = step_in(run, step) / "shard-0000-0000.safetensors";
  std::string content = read_file(shard);
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file_atomic(shard, content);
}

}  // namespace

TEST_CASE("93: restarts that fall back to one step bring a job no further") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const fs::path run = here.path / "run";
  damage(run, 6);
  for (const int restarts : {0, 1}) {
    train::append_start(run, {.job = "12", .restarts = restarts, .step = 4});
  }
  const auto restarted = [&](int limit) {
    return test::run_process(
        {"/usr/bin/env", "SLURM_JOB_ID=12", "SLURM_RESTART_COUNT=2", LLMTRAIN_EXECUTABLE, "run",
         "recipe.yaml", fmt::format("resilience.max_restarts_without_progress={}", limit)},
        here.path.string(), {});
  };
  const auto refused = restarted(1);
  INFO(refused.output);
  CHECK(refused.exit_code == 93);
  CHECK(holds(refused.output, {"never beyond the checkpoint of step 4"}));
  CHECK(train::read_starts(run).size() == 3);
  CHECK(restarted(2).exit_code == 0);
  CHECK(train::read_starts(run).size() == 4);
}

TEST_CASE("a disk that is too full for a run that has checkpoints is one before any data is read") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  std::vector<std::string> too_large = {"run.memory_limit=10000000GiB", "model.hidden_size=1000000",
                                        "model.num_hidden_layers=3",
                                        "data.sources=[{path: nothere.txt}]"};
  const auto refused = [&](const std::vector<std::string>& parts) {
    const auto result = here.run(too_large);
    INFO(result.output);
    CHECK(result.exit_code == 7);
    CHECK(holds(result.output, parts));
  };
  refused({"a checkpoint needs ", "TiB of disk (",
           "TiB times the safety factor of 1.2), but run has",
           " free; the run's checkpoints are intact: free space there, and run again\n"});
  too_large.emplace_back("checkpoint.keep_latest=2");
  refused(
      {"and run again; checkpoint.keep_latest keeps none of the 1 oldest, such as "
       "run/checkpoints/step-00000002: delete them, if `llmtrain ckpt verify` finds two "
       "newer ones valid"});
  too_large.emplace_back("checkpoint.keep_every=2");
  refused({"free space there, and run again\n"});
}

TEST_CASE("a disk that has room for the next checkpoint and not for all is told of at the start") {
  const Workspace here(kTinyRecipe);
  // Masters and moments of the table and the head take half of what is free.
  const std::uint64_t rows = free_disk_bytes(here.path) / (2 * 24 * 16);
  const auto start = [&](const char* keep_latest) {
    return here.call({"run", "recipe.yaml", "run.memory_limit=10000000GiB",
                      fmt::format("model.vocab_size={}", rows),
                      fmt::format("checkpoint.keep_latest={}", keep_latest),
                      "data.sources=[{path: nothere.txt}]"});
  };
  for (const char* keep_latest : {"null", "2"}) {
    const auto result = start(keep_latest);
    INFO(result.output);
    CHECK(result.exit_code == 4);
    CHECK(holds(result.output, {"warning: run has ", " free, and the run will have up to ",
                                fmt::format("{} checkpoints of ", *keep_latest == '2' ? 3 : 4),
                                "checkpoint.keep_latest"}));
  }
}

TEST_CASE("of a damaged checkpoint in FP8 nothing stays where an older one has no scales") {
  const std::string fp8 = "precision={compute: fp8, fp8: {scaling: delayed, include: [\"*\"]}}";
  std::string print;
  for (const bool is_there : {false, true}) {
    const Workspace here(kTinyRecipe);
    run_well(here, {"precision.compute=bf16", "training.max_steps=4"});
    run_well(here, {fp8, "training.max_steps=6"});
    if (is_there) {
      damage(here.path / "run", 6);
    } else {
      fs::remove_all(step_in(here.path / "run", 6));
    }
    const auto result = here.run({fp8, "training.max_steps=8"});
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    CHECK(holds(result.output, {"resumed from step 4", "has no FP8 scales: they begin anew"}));
    const std::string now = fingerprint(here.path, 8);
    if (is_there) CHECK(now == print);
    print = now;
  }
}

TEST_CASE("a start with checkpoint.resume: STEP that comes to nothing changes nothing") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  const fs::path run = here.path / "run";
  const std::string starts = read_file(run / "starts.jsonl");
  damage(run, 2);
  CHECK(here.run({"checkpoint.resume=2"}).exit_code == 4);
  CHECK(read_file(run / "starts.jsonl") == starts);
}

TEST_CASE("what killed starts have not finished in a run's directory goes with the next one") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"training.max_steps=4"});
  const fs::path left = here.path / "run" / "metrics.jsonl.tmp-0badc0de-4711";
  write_file_atomic(left, "half a line");
  // What somebody else has put there is none of it.
  const fs::path notes = here.path / "run" / "notes.tmp-old";
  fs::create_directories(notes / "of.tmp-0badc0de-1");
  write_file_atomic(here.path / "run" / "loss.tmp-2026", "3.1");
  run_well(here, {});
  CHECK(!fs::exists(left));
  CHECK(fs::exists(notes / "of.tmp-0badc0de-1"));
  CHECK(fs::exists(here.path / "run" / "loss.tmp-2026"));
}

TEST_CASE("keys for several data ranks are said to do nothing on one") {
  const Workspace here(kTinyRecipe);
  const std::string_view line = "for several ranks of dp x sp, without effect on one";
  const auto said = here.run({"parallelism.zero=1"});
  INFO(said.output);
  CHECK(said.exit_code == 0);
  CHECK(said.output.find(fmt::format("{}: parallelism.zero", line)) != std::string::npos);
  CHECK(here.run({"run.output_dir=plain"}).output.find(line) == std::string::npos);
  for (const std::string verb : {"check", "plan"}) {
    CAPTURE(verb);
    std::vector<std::string> arguments{verb, "recipe.yaml", "parallelism.zero=1"};
    CHECK(here.call(arguments).output.find(line) != std::string::npos);
    arguments.emplace_back("parallelism.dp=2");
    CHECK(here.call(arguments).output.find("without effect") == std::string::npos);
    arguments.emplace_back("parallelism.dp_replicate=2");
    CHECK(here.call(arguments).output.find(
              "within a replica, without effect on one: parallelism.zero") != std::string::npos);
  }
}

}  // namespace llmtrain
