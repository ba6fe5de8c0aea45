#include "lib/train/slurm_section.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"

namespace llmtrain::train {

namespace {

// Options of sbatch that the script has from somewhere else; 0 where there is no letter for one.
struct OwnOption {
  std::string_view option;
  char letter;
  std::string_view source;
};
constexpr std::array kOwnOptions{
    OwnOption{"--nodes", 'N', "slurm.nodes"},
    OwnOption{"--ntasks", 'n', "slurm.nodes and tasks_per_node"},
    OwnOption{"--ntasks-per-node", 0, "slurm.tasks_per_node"},
    OwnOption{"--tasks-per-node", 0, "slurm.tasks_per_node"},
    OwnOption{"--ntasks-per-gpu", 0, "slurm.tasks_per_node"},
    OwnOption{"--gres", 0, "slurm.gpus_per_node"},
    OwnOption{"--gpus", 'G', "slurm.gpus_per_node"},
    OwnOption{"--gpus-per-node", 0, "slurm.gpus_per_node"},
    OwnOption{"--gpus-per-task", 0, "slurm.gpus_per_node"},
    OwnOption{"--cpus-per-task", 'c', "slurm.cpus_per_task"},
    OwnOption{"--mem", 0, "slurm.memory_per_node"},
    OwnOption{"--time", 't', "slurm.time"},
    OwnOption{"--partition", 'p', "slurm.partition"},
    OwnOption{"--account", 'A', "slurm.account"},
    OwnOption{"--qos", 'q', "slurm.qos"},
    OwnOption{"--signal", 0, "slurm.signal_lead"},
    OwnOption{"--requeue", 0, "slurm.max_requeues"},
    OwnOption{"--no-requeue", 0, "slurm.max_requeues"},
    OwnOption{"--output", 'o', "slurm.log"},
    OwnOption{"--error", 'e', "slurm.log"},
    OwnOption{"--open-mode", 0, "slurm.log"},
    OwnOption{"--job-name", 'J', "run.name"},
    OwnOption{"--array", 'a', "llmtrain slurm script --data-tasks"},
};

// The row that a line of directives repeats, if any. sbatch takes a long option by any beginning
// that no other has, and a letter with its value behind it; none of its other options is the
// beginning of one of these.
const OwnOption* own_option(std::string_view line) {
  const std::string_view option = line.substr(0, line.find_first_of("= \t"));
  const bool is_long = option.starts_with("--");
  const auto exact = std::ranges::find(kOwnOptions, option, &OwnOption::option);
  if (exact != kOwnOptions.end()) return &*exact;
  const auto found = std::ranges::find_if(kOwnOptions, [&](const OwnOption& own) {
    if (is_long) return option.size() > 2 && own.option.starts_with(option);
    return option.size() > 1 && option[0] == '-' && option[1] == own.letter;
  });
  return found == kOwnOptions.end() ? nullptr : &*found;
}

bool has_space(std::string_view text) { return text.find_first_of(" \t\n\r") != text.npos; }

}  // namespace

int SlurmSection::tasks_on_node() const {
  if (tasks_per_node().value) return static_cast<int>(tasks_per_node().value->value);
  return gpus_per_node() ? static_cast<int>(gpus_per_node()->value) : 1;
}

void SlurmSection::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] {
    if (!gpus_per_node() || !tasks_per_node().value) return;
    const std::uint64_t gpus = *gpus_per_node(), tasks = *tasks_per_node().value;
    if (gpus == tasks) return;
    issues.add(tasks_per_node, fmt::format("{} tasks for gpus_per_node {}", tasks, gpus),
               "each task trains on one GPU: leave it out, or give as many");
  });
  recipe::judge(issues, [&] {
    if (!time() || signal_lead().seconds < time()->seconds) return;
    issues.add(signal_lead, "is not shorter than slurm.time");
  });
  for (const auto* key : {&partition, &account, &qos}) {
    if ((*key)() && has_space(*(*key)())) issues.add(*key, "has white space");
  }
  if (has_space(log())) issues.add(log, "has white space");
  // It is quoted in the script, where a mistake would show after hours in a queue.
  if (executable() && executable()->find_first_of(" \t\n\r~$`") != std::string::npos) {
    issues.add(executable, "is one file, in whose name the shell replaces nothing",
               "write its path without ~, $ and white space, or a name that slurm.setup puts on "
               "PATH");
  }
  recipe::judge(issues, [&] { validate_directives(issues); });
}

void SlurmSection::validate_directives(recipe::Issues& issues) const {
  for (const std::string& line : directives()) {
    if (const OwnOption* own = own_option(line)) {
      issues.add(directives,
                 fmt::format("`{}` is {}, which comes from {}", line, own->option, own->source),
                 "leave it out");
    } else if (!line.starts_with("--") || line.find_first_of("\n\r") != line.npos) {
      issues.add(directives, fmt::format("`{}` is no long option of one line", line),
                 "write it as --option=value");
    }
  }
}

}  // namespace llmtrain::train
