// Linked into an executable of its own, never into llmtrain: takes the place of
// train::store_options (--wrap) and kills ranks at a named point of a save. Its environment:
//
//   FAILPOINT         a name of checkpoint::kFailpoints
//   FAILPOINT_SAVE    in which save of the process, from 1
//   FAILPOINT_VICTIM  rank that is killed, or "all"
//   FAILPOINT_PIDS    a directory, in which each rank leaves its process id
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/train/recipe.hpp"
#include "tests/reliability/inject/phases.hpp"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void kill_rank(int rank) {
  std::ifstream file(std::filesystem::path(variable("FAILPOINT_PIDS")) / std::to_string(rank));
  pid_t pid = 0;
  if (file >> pid) ::kill(pid, SIGKILL);
}

// A victim that passes the point dies there; one that does not, when rank 0 passes it.
void pass(std::string_view point, int save) {
  const llmtrain::JobPlace place = llmtrain::this_launch().place;
  const std::string victim = variable("FAILPOINT_VICTIM");
  if (point != variable("FAILPOINT") || std::to_string(save) != variable("FAILPOINT_SAVE")) return;
  const std::string self = std::to_string(place.rank);
  if (victim == "all") {
    for (int rank = 0; rank < place.size; ++rank) {
      if (rank != place.rank) kill_rank(rank);
    }
    ::kill(::getpid(), SIGKILL);
  }
  if (victim == self) ::kill(::getpid(), SIGKILL);
  const bool of_first_alone = point.starts_with("directory.") || point.starts_with("manifest.") ||
                              point.starts_with("commit.") || point.starts_with("latest.") ||
                              point.starts_with("retention.") || point.starts_with("replace.");
  if (of_first_alone) kill_rank(std::stoi(victim));
}

}  // namespace

extern "C" {

// train::store_options(const CheckpointSection&).
llmtrain::checkpoint::StoreOptions STORE_OPTIONS_REAL(
    const llmtrain::train::CheckpointSection& section);

llmtrain::checkpoint::StoreOptions STORE_OPTIONS_WRAPPED(
    const llmtrain::train::CheckpointSection& section) {
  llmtrain::checkpoint::StoreOptions options = STORE_OPTIONS_REAL(section);
  options.failpoint = [](std::string_view point) {
    if (point == "shard.write") llmtrain::test::pass_phase("save");
  };
  if (variable("FAILPOINT").empty()) return options;
  const int rank = llmtrain::this_launch().place.rank;
  llmtrain::write_file_atomic(
      std::filesystem::path(variable("FAILPOINT_PIDS")) / std::to_string(rank),
      std::to_string(::getpid()));
  options.failpoint = [](std::string_view point) {
    static std::atomic<int> save = 0;  // of the process, whatever copies this function
    if (point == "save.begin") ++save;
    pass(point, save);
  };
  return options;
}
}
