// Keys of the job that `llmtrain slurm` asks a cluster for, and of steps that go wrong.
#include "tests/flip/flip_table.hpp"

namespace llmtrain::test {

namespace {

using enum Sight;

// A learning rate that makes every loss but the first NaN.
constexpr std::string_view kDiverge = "optimizer.lr=1e38 | optimizer.max_grad_norm=null";
constexpr std::string_view kSpikes =
    "optimizer.lr=3 | resilience={on_loss_spike: skip, loss_spike_window: 1, loss_spike_factor: "
    "1.001}";

const std::vector<Flip> kBadSteps{
    {"resilience.on_non_finite", {exit, metrics}, kDiverge, {"resilience.on_non_finite=skip"}},
    {"resilience.max_skipped_steps",
     {exit},
     "resilience.on_non_finite=skip | optimizer.lr=1e38 | optimizer.max_grad_norm=null",
     {"resilience.max_skipped_steps=2"}},
    {"resilience.on_non_finite",
     {exit},
     "resilience.on_non_finite=skip | optimizer.lr=1e38 | optimizer.max_grad_norm=null",
     {"resilience.on_non_finite=rollback"}},  // to nothing: there is no checkpoint
    {"resilience.on_loss_spike", {exit}, kSpikes, {"resilience.on_loss_spike=stop"}},
    // Nothing is a spike before there are a hundred steps, and the other keys would do nothing.
    {"resilience.on_loss_spike",
     {},
     "resilience.on_loss_spike=skip",
     {"resilience.on_loss_spike=ignore", "resilience.on_loss_spike=rollback"}},
    {"resilience.loss_spike_factor", {metrics}, kSpikes, {"resilience.loss_spike_factor=1000"}},
    {"resilience.loss_spike_window", {metrics}, kSpikes, {"resilience.loss_spike_window=1000"}},
    // Whoever goes back to the same checkpoint ends alike, sooner or later.
    {"resilience.max_rollbacks",
     {},
     "resilience.on_non_finite=rollback",
     {"resilience.max_rollbacks=1"}},
    {"resilience.checksum_every", {}, "", {"resilience.checksum_every=1"}},  // of one rank
};

const std::vector<Flip> kJob{
    {"resilience.exit_margin", {exit}, "", {"resilience.exit_margin=2h"}},
    {"resilience.max_restarts_without_progress",
     {exit},
     "",
     {"resilience.max_restarts_without_progress=0"},
     {},
     true},
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

const std::vector<Flip> kRecords = {
    {"metrics.interval", {metrics}, "", {"metrics.interval=2"}},
    {"metrics.diagnostics_interval", {plan, metrics}, "", {"metrics.diagnostics_interval=2"}},
    {"metrics.tensorboard", {files}, "", {"metrics.tensorboard=false"}},
    {"profiler.first_step", {files}, "", {"profiler.first_step=2"}},
    {"profiler.num_steps", {files}, "profiler.first_step=1", {"profiler.num_steps=1"}},
};

}  // namespace

std::span<const Flip> job_flips() { return kJob; }
std::span<const Flip> bad_step_flips() { return kBadSteps; }
std::span<const Flip> record_flips() { return kRecords; }

}  // namespace llmtrain::test
