#include "tests/slurm/cluster.hpp"

#include <chrono>
#include <filesystem>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_status.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

const std::string kScript = test_file("../scripts/slurm/local_cluster.sh");

ProcessResult run_cluster(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"/bin/bash", kScript});
  return run_process(arguments, "/", {.limit_seconds = 120});
}

/// Asks again and again; false when it never holds.
bool within(double seconds, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return true;
}

// The word behind "name=".
std::string field(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(" " + name + "=");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 2;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

}  // namespace

int start_cluster() {
  const std::string directory =
      (fs::temp_directory_path() / fmt::format("llmtrain-slurm-test-{}", ::getpid())).string();
  ::setenv("LLMTRAIN_SLURM_DIR", directory.c_str(), 1);
  ::setenv("SLURM_CONF", (directory + "/slurm.conf").c_str(), 1);
  const ProcessResult started = run_cluster({"start", "--nodes", "2", "--cpus", "4"});
  std::fputs(started.output.c_str(), stdout);
  return started.exit_code;
}

void stop_cluster() { run_cluster({"stop"}); }

void call_cluster(const std::vector<std::string>& arguments) {
  const ProcessResult result = run_cluster(arguments);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
}

std::string slurm(const std::vector<std::string>& command, const std::string& directory) {
  std::vector<std::string> words{"/usr/bin/env"};
  words.insert(words.end(), command.begin(), command.end());
  const ProcessResult result = run_process(words, directory, {.limit_seconds = 30});
  INFO(fmt::format("{}\n{}", fmt::join(command, " "), result.output));
  REQUIRE(result.exit_code == 0);
  return result.output;
}

JobFacts facts_of(const std::string& job) {
  const std::string text = slurm({"scontrol", "--oneliner", "show", "job", job});
  return {.state = field(text, "JobState"),
          .exit_code = field(text, "ExitCode"),
          .restarts = std::stoi(field(text, "Restarts"))};
}

JobFacts wait_for(const std::string& job, std::string_view state, double seconds) {
  JobFacts facts;
  const auto is_over = [&] {
    facts = facts_of(job);
    return facts.state == state || facts.state == "FAILED" || facts.state == "CANCELLED";
  };
  const bool there = within(seconds, is_over) && facts.state == state;
  INFO(fmt::format("job {} is {} with exit code {}, not {}", job, facts.state, facts.exit_code,
                   state));
  REQUIRE(there);
  return facts;
}

void wait_for_step(const fs::path& where, std::int64_t step, double seconds) {
  const bool there = within(seconds, [&] {
    const auto status = train::read_status(where / "run");
    return status && status->step >= step &&
           train::life_of(*status, train::unix_time()) == train::Life::alive;
  });
  INFO(fmt::format("no step {} in {}", step, where.string()));
  REQUIRE(there);
}

std::string submit(const Workspace& here, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"slurm", "submit", "recipe.yaml"});
  const ProcessResult result = here.call(overrides);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  const std::string lines = result.output.substr(0, result.output.find_last_not_of('\n') + 1);
  const std::string job = lines.substr(lines.find_last_of('\n') + 1);
  REQUIRE(!job.empty());
  REQUIRE(job.find_first_not_of("0123456789") == std::string::npos);
  return job;
}

std::string log_of(const Workspace& here) {
  std::string text;
  for (const auto& entry : fs::directory_iterator(here.path)) {
    if (entry.path().extension() == ".log") text += read_file(entry.path());
  }
  return text;
}

}  // namespace llmtrain::test
