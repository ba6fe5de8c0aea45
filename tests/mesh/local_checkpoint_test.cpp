// checkpoint.local in a job of several ranks: all of them must see its directory.
#include <csignal>
#include <filesystem>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/store.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLocal{
    "checkpoint={interval: null, local: {directory: fast, interval: 1}}", "run.output_dir=run"};

}  // namespace

TEST_CASE("a rank that does not see a directory of checkpoints is named, and all end") {
  const Workshop w;
  // The run's directory is one, the other is one for each rank: a disk of its machine.
  for (const char* machine : {"first", "second"}) {
    fs::create_directory(w.scratch / machine);
    for (const char* file : {"r.yaml", "text.txt"}) {
      fs::copy(w.scratch / file, w.scratch / machine / file);
    }
  }
  const auto refuse = [&](const std::vector<std::string>& overrides, const std::string& key,
                          const std::string& directory) {
    std::vector<std::string> rank{LLMTRAIN_EXECUTABLE, "run", "r.yaml"};
    rank.insert(rank.end(), overrides.begin(), overrides.end());
    std::vector<std::string> command = mpirun(1);
    command.insert(command.end(), {"-wdir", (w.scratch / "first").string()});
    command.insert(command.end(), rank.begin(), rank.end());
    command.insert(command.end(), {":", "-n", "1", "-wdir", (w.scratch / "second").string()});
    command.insert(command.end(), rank.begin(), rank.end());
    const ProcessResult result =
        run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
    CAPTURE(result.output);
    CHECK(!result.timed_out);
    CHECK(result.exit_code == 2);
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const std::string said = fmt::format(
        "{0}: rank 1 on {1} does not see what rank 0 on {1} writes in {2}", key, host, directory);
    const std::size_t at = result.output.find(said);
    CHECK(at != std::string::npos);
    CHECK(result.output.find(said, at + 1) == std::string::npos);
  };
  refuse({kLocal[0], "run.output_dir=" + (w.scratch / "run").string()},
         "checkpoint.local.directory", "fast");
  CHECK(fs::is_empty(w.scratch / "first" / "fast"));
  CHECK(!fs::exists(w.scratch / "run" / "checkpoints" / "local.json"));
  refuse({"run.output_dir=run"}, "run.output_dir", "run");
}

TEST_CASE("local checkpoints: ranks that share their directory go on from what all have saved") {
  const Workshop w;
  const std::vector<std::string> overrides{kLocal[0], kLocal[1], "parallelism.zero=1",
                                           "training.max_steps=100000", "eval.interval=null"};
  const ProcessResult killed = w.run_in_shell(
      2,
      "[ $OMPI_COMM_WORLD_RANK = 1 ] && (until grep -qs '\"step\":8,' run/metrics.jsonl; do sleep "
      "0.02; done; kill -KILL $$) &",
      fmt::format("'{}'", fmt::join(overrides, "' '")));
  CAPTURE(killed.output);
  REQUIRE(killed.exit_code != 0);
  const ProcessResult resumed =
      w.run(2, overrides, {.limit_seconds = 60, .signal = SIGUSR1, .signal_after = ", saved in "});
  CAPTURE(resumed.output);
  CHECK(resumed.exit_code == 75);
  const fs::path checkpoints = w.scratch / "run" / "checkpoints";
  CHECK(!checkpoint::CheckpointStore::open_reader(checkpoints).list().empty());
}

}  // namespace llmtrain::test
