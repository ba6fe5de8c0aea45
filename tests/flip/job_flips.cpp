// Keys of the job that `llmtrain slurm` asks a cluster for.
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using enum Sight;

const std::vector<Flip> kSlurm{
    {"slurm.nodes", {job}, "", {"slurm.nodes=2"}},
    {"slurm.tasks_per_node", {job}, "", {"slurm.tasks_per_node=2"}},
    {"slurm.gpus_per_node", {job}, "slurm.gpus_per_node=1", {"slurm.gpus_per_node=2"}},
    {"slurm.gpus_per_node", {job}, "", {"slurm.gpus_per_node=1"}},
    {"slurm.cpus_per_task", {job}, "", {"slurm.cpus_per_task=3"}},
    {"slurm.memory_per_node", {job}, "", {"slurm.memory_per_node=3GiB"}},
    {"slurm.time", {job}, "", {"slurm.time=3h"}},
    {"slurm.partition", {job}, "", {"slurm.partition=gpu"}},
    {"slurm.account", {job}, "", {"slurm.account=me"}},
    {"slurm.qos", {job}, "", {"slurm.qos=low"}},
    {"slurm.signal_lead", {job}, "", {"slurm.signal_lead=60"}},
    {"slurm.max_requeues", {job}, "", {"slurm.max_requeues=0"}},
    {"slurm.node_failure_wait", {job}, "", {"slurm.node_failure_wait=0"}},
    {"slurm.preflight", {job}, "", {"slurm.preflight=false"}},
    {"slurm.mpi", {job}},
    {"slurm.log", {job}, "", {"slurm.log=job.txt"}},
    {"slurm.directives", {job}, "", {"slurm.directives=[--constraint=h100]"}},
    {"slurm.setup", {job}, "", {"slurm.setup=[module load cuda]"}},
    {"slurm.executable", {job}, "", {"slurm.executable=/opt/llmtrain"}},
};

}  // namespace

std::span<const Flip> job_flips() { return kSlurm; }

}  // namespace llmtrain::test
