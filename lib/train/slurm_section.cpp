#include "lib/train/slurm_section.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"

namespace llmtrain::train {

namespace {

// Options of sbatch that the script has from somewhere else.
struct OwnOption {
  std::string_view option, source;
};
constexpr std::array kOwnOptions{
    OwnOption{"--nodes", "slurm.nodes"},
    OwnOption{"--ntasks", "slurm.nodes and tasks_per_node"},
    OwnOption{"--ntasks-per-node", "slurm.tasks_per_node"},
    OwnOption{"--gres", "slurm.gpus_per_node"},
    OwnOption{"--gpus", "slurm.gpus_per_node"},
    OwnOption{"--gpus-per-node", "slurm.gpus_per_node"},
    OwnOption{"--gpus-per-task", "slurm.gpus_per_node"},
    OwnOption{"--cpus-per-task", "slurm.cpus_per_task"},
    OwnOption{"--mem", "slurm.memory_per_node"},
    OwnOption{"--time", "slurm.time"},
    OwnOption{"--partition", "slurm.partition"},
    OwnOption{"--account", "slurm.account"},
    OwnOption{"--qos", "slurm.qos"},
    OwnOption{"--signal", "slurm.signal_lead"},
    OwnOption{"--requeue", "slurm.max_requeues"},
    OwnOption{"--no-requeue", "slurm.max_requeues"},
    OwnOption{"--output", "slurm.log"},
    OwnOption{"--error", "slurm.log"},
    OwnOption{"--open-mode", "slurm.log"},
    OwnOption{"--job-name", "run.name"},
    OwnOption{"--array", "llmtrain slurm script --data-tasks"},
};

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
  if (executable() && has_space(*executable())) issues.add(executable, "has white space");
  recipe::judge(issues, [&] { validate_directives(issues); });
}

void SlurmSection::validate_directives(recipe::Issues& issues) const {
  for (const std::string& line : directives()) {
    if (!line.starts_with("--") || line.find_first_of("\n\r") != line.npos) {
      issues.add(directives, fmt::format("`{}` is no long option of one line", line),
                 "write it as --option=value");
      continue;
    }
    const std::string_view option = std::string_view(line).substr(0, line.find_first_of("= \t"));
    const auto own = std::ranges::find(kOwnOptions, option, &OwnOption::option);
    if (own == kOwnOptions.end()) continue;
    issues.add(directives, fmt::format("{} comes from {}", option, own->source), "leave it out");
  }
}

}  // namespace llmtrain::train
