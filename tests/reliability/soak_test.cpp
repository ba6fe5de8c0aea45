// One run that is hit again and again: T4 of docs/reliability.md.
#include <csignal>
#include <filesystem>
#include <random>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/store.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kInterval = 5;

// A save every five steps of a few milliseconds: kills hit all of a run's parts. The last step
// changes nothing of those before it.
Overrides long_run(std::int64_t steps) {
  return {fmt::format("training.max_steps={}", steps),
          "lr_scheduler={type: constant, warmup: 0}",
          fmt::format("checkpoint.interval={}", kInterval),
          "eval.interval=null",
          "checkpoint.max_shard_size=4GiB",
          "model.hidden_size=16",
          "model.intermediate_size=32",
          "training.global_batch_size=2"};
}

std::int64_t newest_step(const Job& job) {
  const auto store = checkpoint::CheckpointStore::open_reader(job.checkpoints());
  return static_cast<std::int64_t>(
      store.newest_valid(checkpoint::VerifyLevel::hash).step.value_or(0));
}

// Checkpoints that a kill has left unfinished.
std::set<std::string> unfinished(const Job& job) {
  std::set<std::string> names;
  if (!std::filesystem::exists(job.checkpoints())) return names;
  for (const auto& entry : std::filesystem::directory_iterator(job.checkpoints())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find(".tmp-") != name.npos) names.insert(name);
  }
  return names;
}

// Kills until there were so many, each at a time that a seed says, whatever a machine trains
// meanwhile; then lets the run end a little later.
std::string kill_and_kill(const Layout& layout, int kills) {
  const Job job(layout);
  const Overrides endless = long_run(100'000'000);
  std::mt19937 random(20261125);
  std::uniform_real_distribution<double> seconds(0.05, 0.6);
  int in_saves = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const std::int64_t saved = newest_step(job);
    const std::set<std::string> before = unfinished(job);
    const ProcessResult result = job.run_for(seconds(random), endless);
    if (result.exit_code != -SIGKILL) {
      return fmt::format("kill {}: ended by itself with {}: {}", kill, result.exit_code,
                         result.output);
    }
    const std::int64_t resumed = number_after(result.output, "resumed from step ");
    const bool lost = resumed >= 0 && resumed != saved;
    if (lost || newest_step(job) < saved) {
      return fmt::format("kill {}: {} was saved: {}", kill, saved, result.output);
    }
    // What is new there, because the next start may be killed before it clears the old.
    for (const std::string& name : unfinished(job)) {
      if (before.contains(name)) continue;
      ++in_saves;
      break;
    }
    const std::int64_t most = (layout.async ? 2 : 1) * kInterval - 1;
    if (kill % 10 == 9 && job.reported() - newest_step(job) > most) {
      return fmt::format("kill {}: costs steps {} to {}", kill, newest_step(job) + 1,
                         job.reported());
    }
  }
  MESSAGE(in_saves << " of " << kills << " kills hit a save");
  if (in_saves < kills / 50) return fmt::format("only {} kills hit a save", in_saves);
  constexpr double kLimitSeconds = 1800;
  const std::int64_t steps = newest_step(job) + 100;
  const Overrides overrides = long_run(steps);
  const ProcessResult end = job.run({}, overrides, LLMTRAIN_EXECUTABLE, kLimitSeconds);
  if (end.exit_code != 0) return end.output;
  const Job unhurt(layout);
  const ProcessResult whole = unhurt.run({}, overrides, LLMTRAIN_EXECUTABLE, kLimitSeconds);
  if (whole.exit_code != 0) return whole.output;
  const bool same = job.fingerprint(steps) == unhurt.fingerprint(steps);
  return same ? "" : "ends with another state";
}

}  // namespace

TEST_CASE("T4 a run that is killed again and again ends as if nothing had happened") {
  Journal journal("T4", 1);
  const bool all = journal.tries_all();
  for (const bool async : {false, true}) {
    const Layout layout{.async = async};
    journal.run(fmt::format("{} kills, {}", all ? 1000 : 8, layout.name()),
                [&] { return kill_and_kill(layout, all ? 1000 : 8); });
  }
  journal.check();
}

}  // namespace llmtrain::test
