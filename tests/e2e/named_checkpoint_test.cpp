// checkpoint.resume: STEP goes back to a checkpoint, and loses nothing of what came after it; what
// else a start makes of the checkpoints that it finds, or does not find.
#include <csignal>
#include <filesystem>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::uint64_t>;

checkpoint::CheckpointStore store_of(const Workspace& here) {
  return checkpoint::CheckpointStore::open_reader(here.path / "run" / "checkpoints");
}

/// Names in run/, and in run/checkpoints, that say what was set aside.
std::vector<fs::path> copies_of(const Workspace& here, const std::string& file) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(here.path / "run")) {
    if (entry.path().filename().string().starts_with(file + ".aside-")) {
      found.push_back(entry.path());
    }
  }
  return found;
}

void damage(const Workspace& here, std::uint64_t step) {
  const fs::path shard = store_of(here).directory_of(step) / "shard-0000-0000.safetensors";
  std::string content = read_file(shard);
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file_atomic(shard, content);
}

}  // namespace

TEST_CASE("a named step: the run goes on from there, and what came after it is set aside") {
  const Workspace whole(kTinyRecipe), here(kTinyRecipe);
  run_well(whole, {});
  const std::string expected = fingerprint(whole.path, 6);
  run_well(here, {});
  const std::string first_metrics = read_file(here.path / "run" / "metrics.jsonl");

  const auto back = here.run({"checkpoint.resume=2"});
  INFO(back.output);
  REQUIRE(back.exit_code == 0);
  CHECK(holds(back.output, {"resumed from step 2\n", "went back to step 2: newer checkpoints"}));
  CHECK(fingerprint(here.path, 6) == expected);
  CHECK(store_of(here).list() == Steps{2, 4, 6});
  CHECK(store_of(here).list_aside().size() == 2);
  const auto copies = copies_of(here, "metrics.jsonl");
  REQUIRE(copies.size() == 1);
  CHECK(read_file(copies[0]) == first_metrics);
  const auto listed = here.call({"ckpt", "ls", "run"});
  CHECK(listed.exit_code == 0);
  CHECK(holds(listed.output, {"step        6 ", "set aside when a run went back, read by no run: ",
                              "step-00000006.aside-"}));
  CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);

  // Nothing newer is there: nothing to set aside.
  const auto again = here.run({"checkpoint.resume=6", "training.max_steps=8"});
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(holds(again.output, {"resumed from step 6\n"}));
  CHECK(!holds(again.output, {"went back"}));
  CHECK(store_of(here).list_aside().size() == 2);
}

TEST_CASE("a named step: a start that was killed behind it goes on there, not where the run was") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"training.max_steps=8"});
  const auto killed = here.run({"checkpoint.resume=4", "training.max_steps=400",
                                "checkpoint.interval=200", "optimizer.lr=1e-3"},
                               {.signal = SIGKILL, .signal_after = "   6/400"});
  INFO(killed.output);
  REQUIRE(killed.exit_code == -SIGKILL);
  CHECK(read_file(here.path / "run" / "checkpoints" / "latest") == "step-00000004\n");
  const auto next = here.run({"training.max_steps=8"});
  INFO(next.output);
  CHECK(next.exit_code == 0);
  CHECK(holds(next.output, {"resumed from step 4\n"}));
}

TEST_CASE("a run whose checkpoints are gone begins, says so, and keeps what it had reported") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  const std::string before = read_file(here.path / "run" / "metrics.jsonl");
  fs::rename(here.path / "run" / "checkpoints", here.path / "elsewhere");
  const auto again = here.run({"training.max_steps=1"});
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(again.output.find("tells of a checkpoint of step 6, and run/checkpoints has none") !=
        std::string::npos);
  const std::vector<fs::path> kept = copies_of(here, "metrics.jsonl");
  REQUIRE(kept.size() == 1);
  CHECK(read_file(kept.front()) == before);
  CHECK(here.metrics().back().step == 1);
  // One that has saved nothing yet has nothing to keep.
  const Workspace fresh(kTinyRecipe);
  fs::create_directory(fresh.path / "run");
  write_file_atomic(fresh.path / "run" / "metrics.jsonl", "");
  const auto first = fresh.run({"training.max_steps=1"});
  CHECK(first.output.find("tells of a checkpoint") == std::string::npos);
}

TEST_CASE("a named step that is missing or damaged is refused with those that there are") {
  const Workspace here(kTinyRecipe);
  const auto refused = [&](const std::vector<std::string>& overrides, int exit_code,
                           const std::vector<std::string>& parts) {
    const auto result = here.run(overrides);
    INFO(result.output);
    CHECK(result.exit_code == exit_code);
    CHECK(holds(result.output, parts));
  };
  refused({"checkpoint.resume=4"}, 4,
          {"run/checkpoints has no checkpoint of step 4; there is none"});
  fs::remove_all(here.path / "run");
  run_well(here, {});
  const std::string before = fingerprint(here.path, 6);
  const std::string metrics = read_file(here.path / "run" / "metrics.jsonl");
  refused({"checkpoint.resume=3"}, 4,
          {"run/checkpoints has no checkpoint of step 3; there are steps 2, 4, 6"});
  damage(here, 4);
  refused({"checkpoint.resume=4"}, 4,
          {"the checkpoint of step 4 in run/checkpoints is not valid: shard-0000-0000.safetensors",
           "does not match the hash", "; there are steps 2, 6"});
  // One that cannot be gone on from is no reason to leave the others.
  refused({"checkpoint.resume=2", "run.seed=6"}, 4, {"made with run.seed 5, the recipe says 6"});
  for (const char* value : {"-1", "newest", "[2]", "2.5"}) {
    refused({fmt::format("checkpoint.resume={}", value)}, 2,
            {"expected auto, must, never or the number of a step"});
  }
  CHECK(store_of(here).list() == Steps{2, 4, 6});
  CHECK(store_of(here).list_aside().empty());
  CHECK(fingerprint(here.path, 6) == before);
  CHECK(read_file(here.path / "run" / "metrics.jsonl") == metrics);
}

TEST_CASE("a named step: a Slurm job that is started again goes back once, another job again") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  const auto start = [&](int job, int restarts, int steps) {
    return test::run_process(
        {"/usr/bin/env", fmt::format("SLURM_JOB_ID={}", job),
         fmt::format("SLURM_RESTART_COUNT={}", restarts), LLMTRAIN_EXECUTABLE, "run", "recipe.yaml",
         "checkpoint.resume=2", fmt::format("training.max_steps={}", steps)},
        here.path, {});
  };
  const auto first = start(7, 0, 4);
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  CHECK(holds(first.output, {"resumed from step 2\n"}));
  CHECK(store_of(here).list() == Steps{2, 4});
  const auto second = start(7, 1, 6);
  INFO(second.output);
  REQUIRE(second.exit_code == 0);
  CHECK(holds(second.output, {"this Slurm job has gone back to step 2 before, and goes on from its "
                              "newest checkpoint now",
                              "resumed from step 4\n"}));
  const auto other = start(8, 0, 4);
  INFO(other.output);
  REQUIRE(other.exit_code == 0);
  CHECK(holds(other.output, {"resumed from step 2\n"}));
}

TEST_CASE("a length in tokens or epochs is not counted with batches that steps did not have") {
  const Workspace here(kTinyRecipe);  // steps of 4 samples of 16 tokens
  const auto stopped = here.run({"training.max_steps=null", "training.max_tokens=640"},
                                {.signal = SIGTERM, .signal_after = "   4/10"});
  REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
  const std::size_t at = stopped.output.find("after step ");
  REQUIRE(at != std::string::npos);
  const std::int64_t step = std::stoll(stopped.output.substr(at + 11));
  const std::int64_t left = (40 - 4 * step + 7) / 8;
  const auto refused = here.run(
      {"training.max_steps=null", "training.max_tokens=640", "training.global_batch_size=8"});
  INFO(refused.output);
  CHECK(refused.exit_code == 2);
  CHECK(holds(
      refused.output,
      {fmt::format("training.max_tokens: the {} steps so far took {} samples", step, 4 * step),
       fmt::format("set training.max_steps: {} in its place", step + left)}));
  const auto rest =
      here.run({fmt::format("training.max_steps={}", step + left), "training.global_batch_size=8"});
  CHECK_MESSAGE(rest.exit_code == 0, rest.output);
  const auto back = here.run({"training.max_steps=null", "training.num_epochs=1"});
  CHECK(holds(back.output, {"training.num_epochs: the "}));
}

}  // namespace llmtrain
