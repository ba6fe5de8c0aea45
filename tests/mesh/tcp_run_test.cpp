// `llmtrain run` in processes that no mpirun started: they meet by TCP.
#include <algorithm>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/comm/tcp/socket.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

/// A port that nobody has now.
int free_port() { return tcp::port_of(tcp::listen_at(0)); }

/// What torchrun sets, where $r is the rank.
std::string torchrun(int ranks) {
  return fmt::format(
      "RANK=$r WORLD_SIZE={0} LOCAL_RANK=$r LOCAL_WORLD_SIZE={0} MASTER_ADDR=localhost "
      "MASTER_PORT={1}",
      ranks, free_port());
}

/// A shell that starts `ranks` processes with `variables`, after `before` in each, and ends with
/// the largest of their exit codes, having said each ("[1] 6").
ProcessResult start(const Workshop& w, int ranks, const std::string& variables,
                    const std::vector<std::string>& overrides, const std::string& before = ":") {
  const std::string command =
      fmt::format("exec env {} timeout -s KILL 60 {} run r.yaml '{}'", variables,
                  LLMTRAIN_EXECUTABLE, fmt::join(overrides, "' '"));
  const std::string script = fmt::format(
      "unset SLURM_STEP_NUM_TASKS; worst=0; for r in $(seq 0 {}); do ({}; {}) & eval p$r=$!; done\n"
      "for r in $(seq 0 {}); do eval wait \\$p$r; code=$?; echo \"[$r] $code\"\n"
      "[ $code -gt $worst ] && worst=$code; done; exit $worst",
      ranks - 1, before, command, ranks - 1);
  return run_process({"/bin/sh", "-c", script}, w.scratch.path().string(), {.limit_seconds = 90});
}

/// What is in the weights and states of a checkpoint, by file.
std::map<std::string, std::string> shards(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") {
      all[entry.path().filename()] = read_file(entry.path());
    }
  }
  return all;
}

std::size_t times(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("ranks that torchrun starts train as those of mpirun, to the bit") {
  for (const auto& [ranks, layout] : {std::pair{2, "parallelism.zero=2"},
                                      {4, "parallelism={tp: 2, pp: 2}"},
                                      {4, "parallelism={dp: 2, sp: 2, sp_algo: ring}"}}) {
    if (is_quick() && std::string_view(layout) == "parallelism={tp: 2, pp: 2}") continue;
    CAPTURE(layout);
    const Workshop w;
    const ProcessResult mpi = w.run(ranks, {"run.output_dir=mpi", layout});
    REQUIRE_MESSAGE(mpi.exit_code == 0, mpi.output);
    const ProcessResult tcp = start(w, ranks, torchrun(ranks), {"run.output_dir=tcp", layout});
    REQUIRE_MESSAGE(tcp.exit_code == 0, tcp.output);
    CHECK(times(tcp.output, "saved tcp/checkpoints/step-00000012") == 1);
    CHECK(w.records("tcp") == w.records("mpi"));
    CHECK(losses_and_norms(w.scratch / "tcp") == losses_and_norms(w.scratch / "mpi"));
    const auto expected = shards(w.scratch / "mpi" / "checkpoints" / "step-00000012");
    CHECK(!expected.empty());
    CHECK(shards(w.scratch / "tcp" / "checkpoints" / "step-00000012") == expected);
  }
}

TEST_CASE("tasks of srun without PMI train one run") {
  const Workshop w;
  const ProcessResult result =
      start(w, 2,
            fmt::format("SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=$r "
                        "SLURM_LOCALID=$r SLURM_JOB_ID={} SLURM_STEP_ID=0 "
                        "SLURM_STEP_NODELIST=localhost",
                        ::getpid()),
            {"run.output_dir=srun"});
  CAPTURE(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(times(result.output, "saved srun/checkpoints/step-00000012") == 1);
  const ProcessResult one = w.run(2, {"run.output_dir=mpi"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  CHECK(w.records("srun") == w.records("mpi"));
}

TEST_CASE("a killed rank ends the others, which name it") {
  const Workshop w;
  // The third is killed by its own limit of processor time while the others go on.
  const ProcessResult result = start(w, 3, torchrun(3),
                                     {"run.output_dir=k", "training.max_steps=1000000",
                                      "training.global_batch_size=3", "eval.interval=null"},
                                     "[ $r = 2 ] && ulimit -t 2");
  CAPTURE(result.output);
  CHECK(!result.timed_out);
  const std::string text = fmt::format("rank 2 on {} ended", tcp::host_name());
  CHECK(times(result.output, text) >= 1);
  CHECK(result.output.find("[0] 6") != std::string::npos);
  CHECK(result.output.find("[1] 6") != std::string::npos);
  CHECK(result.output.find("last collectives of this rank: #") != std::string::npos);
}

TEST_CASE("what all ranks refuse is said once, and all end with its exit code") {
  const Workshop w;
  const ProcessResult result = start(w, 2, torchrun(2), {"run.output_dir=r", "parallelism.dp=4"});
  CAPTURE(result.output);
  CHECK(times(result.output,
              "parallelism.dp=4: 4 takes 4 ranks, and the job has 2 ranks (start 4") == 1);
  CHECK(result.output.find("[0] 2") != std::string::npos);
  CHECK(result.output.find("[1] 2") != std::string::npos);
}

TEST_CASE("a rank of torchrun that cannot know the others trains nothing") {
  const Workshop w;
  const ProcessResult result =
      start(w, 2, "RANK=$r WORLD_SIZE=2 MASTER_ADDR=localhost", {"run.output_dir=n"});
  CAPTURE(result.output);
  CHECK(result.exit_code == 2);
  CHECK(times(result.output, "MASTER_PORT is not set") == 2);
  CHECK(!std::filesystem::exists(w.scratch / "n"));
}

}  // namespace llmtrain::test
