#pragma once
/// `slurm` of the recipe: what `llmtrain slurm` asks of a cluster. A run reads none of it.

#include <optional>
#include <string>
#include <vector>

#include "lib/recipe/load.hpp"

namespace llmtrain::train {

struct SlurmSection : recipe::Section {
  recipe::Key<recipe::Count> nodes{this, "nodes", 1, "machines of the job",
                                   recipe::between(1, 1 << 20)};
  recipe::Key<recipe::Auto<recipe::Count>> tasks_per_node{
      this,
      "tasks_per_node",
      {},
      "ranks on each machine; auto = one for each of gpus_per_node, else 1",
      recipe::between(1, 4096)};
  recipe::Key<std::optional<recipe::Count>> gpus_per_node{
      this, "gpus_per_node", std::nullopt,
      "GPUs to ask for on each machine, one for each task; null = none", recipe::between(1, 4096)};
  recipe::Key<std::optional<recipe::Count>> cpus_per_task{
      this, "cpus_per_task", std::nullopt,
      "processors to ask for, for each task; null = what the cluster gives",
      recipe::between(1, 4096)};
  recipe::Key<std::optional<recipe::Bytes>> memory_per_node{
      this, "memory_per_node", std::nullopt,
      "memory to ask for on each machine; null = what the cluster gives",
      recipe::at_least(1 << 20)};
  recipe::Key<std::optional<recipe::Duration>> time{
      this, "time", std::nullopt,
      "longest time of one start of the job (a run that takes longer is queued again); null = the "
      "partition's",
      recipe::at_least(60)};
  recipe::Key<std::optional<std::string>> partition{this, "partition", std::nullopt,
                                                    "partition; null = the cluster's default",
                                                    recipe::not_empty()};
  recipe::Key<std::optional<std::string>> account{
      this, "account", std::nullopt, "whom the time is charged to; null = your default",
      recipe::not_empty()};
  recipe::Key<std::optional<std::string>> qos{
      this, "qos", std::nullopt, "quality of service; null = your default", recipe::not_empty()};
  recipe::Key<recipe::Duration> signal_lead{
      this, "signal_lead", recipe::Duration{120},
      "how long before the end of its time the job is told to save and to end (Slurm may be a "
      "minute early)",
      recipe::between(1, 65'535)};
  recipe::Key<recipe::Count> max_requeues{
      this, "max_requeues", 100,
      "how often a job that was stopped and saved is queued again; 0 = never", recipe::Rule{}};
  recipe::Key<recipe::Duration> node_failure_wait{
      this, "node_failure_wait", recipe::Duration{360},
      "how long the job stays when processes were lost, so that Slurm can notice that it was a "
      "machine (its SlurmdTimeout, usually 5 minutes) and queue the job again; 0 = not at all",
      recipe::at_most(1e6)};
  recipe::Key<bool> preflight{this, "preflight", true,
                              "connect all tasks and print their layout (llmtrain doctor) before "
                              "each start of the run"};
  recipe::Key<std::string> mpi{
      this, "mpi", "none", "srun --mpi: none = tasks find each other by TCP; pmix or pmi2 = by MPI",
      recipe::any_of({"none", "pmix", "pmi2"})};
  recipe::Key<std::string> log{this, "log", "%x-%j.log",
                               "what the job prints, in a directory that exists; %x is its name, "
                               "%j its number",
                               recipe::not_empty()};
  recipe::Key<std::vector<std::string>> directives{
      this,
      "directives",
      {},
      "further options of sbatch, such as --constraint=h100",
      recipe::Rule{}};
  recipe::Key<std::vector<std::string>> setup{
      this,
      "setup",
      {},
      "shell lines before the run, such as module load and export",
      recipe::Rule{}};
  recipe::Key<std::optional<std::string>> executable{
      this, "executable", std::nullopt,
      "llmtrain on the machines of the job; null = the file that writes the script",
      recipe::not_empty()};

  int tasks_on_node() const;
  /// Ranks of the job.
  int tasks() const { return static_cast<int>(nodes().value) * tasks_on_node(); }

  void validate(recipe::Issues& issues) const override;

 private:
  void validate_directives(recipe::Issues& issues) const;
};

}  // namespace llmtrain::train
