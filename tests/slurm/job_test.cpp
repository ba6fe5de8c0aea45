// Jobs of a real Slurm: two nodes, two ranks on each. Whatever ends a job, what comes of the run is
// what an uninterrupted one makes.
#include <chrono>
#include <cstdlib>
#include <fstream>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "tests/slurm/cluster.hpp"

namespace llmtrain::test {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecipe = R"(
recipe: 1
run: {device: cpu, output_dir: run, seed: 5, threads: 1}
model: {architecture: llama, vocab_size: 257, hidden_size: 64, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 128, max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 32, micro_batch_size: 4, global_batch_size: 16, max_steps: 1}
optimizer: {lr: 5.0e-3}
checkpoint: {interval: 50, keep_latest: 2}
eval: {interval: 100, max_samples: 8}
metrics: {interval: 10, tensorboard: false}
parallelism: {dp: 2, tp: 2, zero: 1}
slurm: {nodes: 2, tasks_per_node: 2, cpus_per_task: 1, time: 10min, node_failure_wait: 60,
        preflight: false}
)";

/// Seconds; other work on the machine slows a job down several times.
constexpr double kHang = 1500;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The same run without interruption, as a job, too; made once.
struct Reference {
  Reference() {
    const auto run = [](const Workspace& there, std::int64_t steps) {
      const auto begin = std::chrono::steady_clock::now();
      const std::string job = submit(there, {fmt::format("training.max_steps={}", steps)});
      wait_for(job, "COMPLETED", kHang);
      return seconds_since(begin);
    };
    // As many steps as take a while here; start-up takes its time, too.
    constexpr std::int64_t kFew = 100, kMore = 600;
    const double few = run(Workspace(kRecipe), kFew);
    const double more = run(Workspace(kRecipe), kMore);
    const double step = std::max(0.002, (more - few) / static_cast<double>(kMore - kFew));
    steps =
        100 * std::clamp<std::int64_t>(static_cast<std::int64_t>(kSeconds / step / 100), 5, 200);
    run(here, steps);
    expected = fingerprint(here.path, static_cast<std::uint64_t>(steps));
  }
  static const Reference& get() {
    static const Reference reference;
    return reference;
  }
  std::string length() const { return fmt::format("training.max_steps={}", steps); }
  void check(const Workspace& there) const {
    CHECK(fingerprint(there.path, static_cast<std::uint64_t>(steps)) == expected);
  }

  static constexpr double kSeconds = 50;
  Workspace here{kRecipe};
  std::int64_t steps = 0;
  std::string expected;
};

}  // namespace

TEST_CASE("the time of a job: signalled, saved, queued again, finished") {
  const Reference& reference = Reference::get();
  const Workspace here(kRecipe);
  // Slurm looks every 30 s, and signals up to 30 s early.
  const std::string job =
      submit(here, {reference.length(), "slurm.time=1min", "slurm.signal_lead=20s",
                    "resilience.exit_margin=1s", "slurm.preflight=true"});
  const JobFacts end = wait_for(job, "COMPLETED", kHang);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(end.restarts >= 1);
  CHECK(holds(log, {"stopped by signal 10 after step", "state saved", "resumed from step", "tp"}));
  reference.check(here);
}

TEST_CASE("the time of a job, by its clock: saved and ended before it is over") {
  const Reference& reference = Reference::get();
  const Workspace here(kRecipe);
  const std::string job = submit(here, {reference.length(), "slurm.time=1min",
                                        "slurm.signal_lead=1s", "resilience.exit_margin=35s"});
  const JobFacts end = wait_for(job, "COMPLETED", kHang);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(end.restarts >= 1);
  CHECK(holds(log, {"stopped by the end of its job's time, in 3"}));
  reference.check(here);
}

TEST_CASE("scancel: saved, and not queued again; the next job goes on") {
  const Reference& reference = Reference::get();
  const Workspace here(kRecipe);
  const std::string job = submit(here, {reference.length()});
  wait_for_step(here.path, 120, 120);
  slurm({"scancel", job});
  CHECK(wait_for(job, "CANCELLED", 60).restarts == 0);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(holds(log, {"stopped by signal 15 after step", "state saved"}));
  const auto status = here.call({"status", "run"});
  CHECK(status.exit_code == 75);
  CHECK(holds(status.output, {"stopped, step ", "exit code 75: stopped by signal 15"}));
  CHECK(facts_of(job).state == "CANCELLED");

  const JobFacts end = wait_for(submit(here, {reference.length()}), "COMPLETED", kHang);
  CHECK(end.restarts == 0);
  reference.check(here);
}

TEST_CASE("a machine fails: Slurm queues the job again, and it goes on from the newest save") {
  const Reference& reference = Reference::get();
  for (const char* node : {"n2", "n1"}) {  // the first one has the batch script and rank 0
    CAPTURE(node);
    const Workspace here(kRecipe);
    const std::string job = submit(here, {reference.length()});
    wait_for_step(here.path, 120, 120);
    call_cluster({"fail", node});
    wait_for(job, "PENDING", 120);
    call_cluster({"revive", node});
    const JobFacts end = wait_for(job, "COMPLETED", kHang);
    const std::string log = log_of(here);
    INFO(log);
    CHECK(end.restarts == 1);
    CHECK(holds(log, {"resumed from step"}));
    reference.check(here);
  }
}

TEST_CASE("preemption: saved, queued again by Slurm, finished") {
  const Reference& reference = Reference::get();
  const Workspace here(kRecipe);
  const std::string job = submit(here, {reference.length()});
  wait_for_step(here.path, 120, 120);
  const std::string urgent = slurm({"sbatch", "--parsable", "--partition=urgent", "--nodes=2",
                                    "--exclusive", "--output=urgent.out", "--wrap=sleep 5"},
                                   here.path);
  const JobFacts end = wait_for(job, "COMPLETED", kHang);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(end.restarts >= 1);
  CHECK(facts_of(urgent.substr(0, urgent.find('\n'))).state == "COMPLETED");
  CHECK(holds(log, {"stopped by signal 15 after step", "state saved", "resumed from step"}));
  reference.check(here);
}

TEST_CASE("a recipe error is not queued again") {
  const Workspace here(kRecipe);
  const std::string job = submit(here, {"slurm.directives=[--begin=now+5]"});
  here.write("recipe.yaml", std::string(kRecipe) + "\nno_such_key: 1\n");
  const JobFacts end = wait_for(job, "FAILED", 120);
  CHECK(end.exit_code == "2:0");
  CHECK(end.restarts == 0);
  CHECK(holds(log_of(here), {"no_such_key: unknown key"}));
}

TEST_CASE("a job that comes no further is queued again a few times, and then ends with 93") {
  const Workspace here(kRecipe);
  // When the run begins its time is always over: a margin of all of it but a second.
  const std::string job = submit(here, {"slurm.setup=[sleep 2]", "resilience.exit_margin=599s",
                                        "resilience.max_restarts_without_progress=1"});
  const JobFacts end = wait_for(job, "FAILED", 200);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(end.exit_code == "93:0");
  // On a busy machine the time is over before the first checkpoint.
  CHECK(holds(log, {"came never beyond the ",
                    "resilience.max_restarts_without_progress is 1"}));
  CHECK(end.restarts >= 2);
  CHECK(end.restarts <= 3);  // the first start had no checkpoint at all
}

TEST_CASE("a job array prepares the data, and the run waits for it") {
  const Workspace here(kRecipe);
  const std::string job =
      submit(here, {"--data-tasks", "3", "data.shard_size=1KiB", "training.max_steps=20"});
  const JobFacts end = wait_for(job, "COMPLETED", 120);
  const std::string log = log_of(here);
  INFO(log);
  CHECK(end.restarts == 0);
  CHECK(log.find("tokenising") == std::string::npos);  // the run found all there
  CHECK(holds(log, {"complete: token files of all tasks are there"}));
}

}  // namespace llmtrain::test
