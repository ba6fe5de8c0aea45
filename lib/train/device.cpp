#include "lib/train/device.hpp"

#include <algorithm>
#include <filesystem>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/optim/host_update_rules.hpp"
#include "lib/plan/nominal_profile.hpp"

namespace llmtrain::train {

namespace {

/// The GPU that this process would take, or why there is none.
struct FoundGpu {
  const kernels::Backend* backend = nullptr;
  GpuShare share;
  std::optional<kernels::AcceleratorFacts> facts;
  std::uint64_t free_bytes = 0;
  std::string problem;
  std::string cudnn_problem;
  std::string nccl_problem;
};

// Of this process, whatever rank is planned.
FoundGpu find_gpu() {
  const kernels::LoadedBackend& loaded = kernels::load_backend(DeviceKind::cuda);
  if (loaded.backend == nullptr) return {.problem = loaded.problem};
  const kernels::BackendReport report = loaded.backend->report();
  if (report.devices.empty()) return {.problem = report.problem};
  const GpuShare share =
      share_of_gpus(this_launch().place, static_cast<int>(report.devices.size()));
  const kernels::AcceleratorFacts& facts = report.devices[static_cast<std::size_t>(share.gpu)];
  if (!facts.problem.empty()) return {.problem = facts.problem};
  try {
    return {.backend = loaded.backend,
            .share = share,
            .facts = facts,
            .free_bytes = loaded.backend->free_bytes(share.gpu),
            .cudnn_problem = report.cudnn_problem,
            .nccl_problem = report.nccl_problem};
  } catch (const DeviceError& error) {
    return {.problem = error.what()};  // others hold it, or have filled it
  }
}

bool has_driver() { return std::filesystem::exists("/dev/nvidiactl"); }

// Libraries take memory outside of the arena, and NCCL, among ranks that share no GPU, for each
// group of them.
std::uint64_t without_reserve(std::uint64_t bytes, const Recipe& recipe, int ranks_on_gpu) {
  const bool exchanges = recipe.job.size > 1 && ranks_on_gpu == 1 &&
                         recipe.parallelism.gpu_collectives() != parallel::GpuCollectives::host;
  return bytes - std::min(bytes, plan::kGpuReserveBytes * (exchanges ? 2 : 1));
}

/// "NVIDIA H200"; "NVIDIA H200, 4 for 8 ranks of this machine".
std::string device_line(const FoundGpu& gpu) {
  const JobPlace& place = this_launch().place;
  if (place.size == 1) return gpu.facts->name;
  return fmt::format("{}, {} for {} rank{} of this machine", gpu.facts->name, gpu.share.gpus,
                     place.local_size, place.local_size == 1 ? "" : "s");
}

}  // namespace

GpuShare share_of_gpus(const JobPlace& place, int gpus) {
  const int gpu = place.local_rank % gpus;
  return {.gpu = gpu,
          .gpus = gpus,
          .ranks = place.local_size / gpus + (gpu < place.local_size % gpus ? 1 : 0)};
}

DeviceKind device_of(const Recipe& recipe) {
  switch (recipe.run.device()) {
    case DeviceChoice::cpu:
      return DeviceKind::cpu;
    case DeviceChoice::cuda:
      return DeviceKind::cuda;
    case DeviceChoice::automatic:
      break;
  }
  if (!has_driver()) return DeviceKind::cpu;
  const FoundGpu gpu = find_gpu();
  if (gpu.backend != nullptr) return DeviceKind::cuda;
  [[maybe_unused]] static const bool said = [&] {
    log::warning("the machine has NVIDIA's driver, but the CPU is taken: {}", gpu.problem);
    return true;
  }();
  return DeviceKind::cpu;
}

namespace {

// Of the GPU that is here; where a plan is for one that is not, as newer ones do.
bool multiplies_codes(DeviceKind device) {
  if (device == DeviceKind::cpu) return false;
  const FoundGpu gpu = find_gpu();
  return !gpu.facts || gpu.facts->multiplies_codes;
}

}  // namespace

void check_device_trains(const Recipe& recipe) {
  const DeviceKind device = device_of(recipe);
  require<RecipeError>(!recipe.precision.tf32() || device == DeviceKind::cuda,
                       "precision.tf32: products on the CPU are fp32, and run.device is {} here; "
                       "leave the key out, or train on a GPU",
                       to_string(device));
  const optim::OptimizerRow& optimizer = recipe.optimizer.name();
  require<RecipeError>(
      !optimizer.cpu_only || device == DeviceKind::cpu,
      "optimizer.name: {} is for the CPU, and run.device is {} here; choose another "
      "optimizer, or run.device: cpu",
      optimizer.name, to_string(device));
  const std::string_view no_host_updates = optim::obstacle_to_host_updates(optimizer);
  require<RecipeError>(no_host_updates.empty() || !recipe.offload.updates_on_host(device),
                       "offload.optimizer: {}, but {} {}, and run.device is {} here; leave it out, "
                       "choose another optimizer, or run.device: cpu",
                       kFilesOfGpu, optimizer.name, no_host_updates, to_string(device));
  require<RecipeError>(!recipe.offload.is_on_host() || device != DeviceKind::cpu,
                       "offload.optimizer: {}, and run.device is {} here; leave it out, or set "
                       "nvme, which keeps them in a file",
                       kNoHostOfCpu, to_string(device));
  require<RecipeError>(
      recipe.offload.activation_place() != ActivationPlace::host || device != DeviceKind::cpu,
      "offload.activation_place: {}, and run.device is {} here; leave it out, or "
      "set nvme, which keeps them in a file",
      kNoHostOfCpuActivations, to_string(device));
  const bool any_exchange =
      recipe.parallelism.gpu_collectives() == parallel::GpuCollectives::automatic;
  require<RecipeError>(any_exchange || device == DeviceKind::cuda,
                       "parallelism.gpu_collectives: run.device is {} here, where there is no GPU; "
                       "leave the key out",
                       to_string(device));
}

engine::Target target_of(const Recipe& recipe) {
  const DeviceKind device = device_of(recipe);
  const auto& chunk = recipe.training.loss_chunk().value;
  const CheckpointSection& checkpoint = recipe.checkpoint;
  return {.device = device,
          .threads = recipe.threads(),
          .library_workspace_bytes = recipe.run.library_workspace().value,
          .loss_chunk_bytes = chunk ? chunk->value : engine::default_loss_chunk_bytes(device),
          .tune_products = recipe.run.tunes_products(),
          .attention = recipe.run.attention(),
          .determinism = recipe.run.determinism(),
          .multiplies_codes = recipe.precision.quantization() && multiplies_codes(device),
          .snapshot_shard_bytes = checkpoint.async() ? checkpoint.max_shard_size().value : 0};
}

std::optional<std::uint64_t> memory_limit(const Recipe& recipe,
                                          const plan::HardwareProfile* profile) {
  if (const auto& given = recipe.run.memory_limit().value) return given->value;
  if (device_of(recipe) == DeviceKind::cpu) {
    const bool is_elsewhere =
        profile != nullptr && profile->device == DeviceKind::cpu && profile->network.has_value();
    return is_elsewhere ? profile->machine.memory_bytes : physical_memory_bytes();
  }
  if (profile != nullptr && profile->device == DeviceKind::cuda) {
    return without_reserve(profile->machine.memory_bytes, recipe, 1);
  }
  const FoundGpu gpu = find_gpu();
  if (gpu.backend == nullptr) return std::nullopt;
  // What is free changes while the others that share it take theirs.
  const int ranks = gpu.share.ranks;
  return without_reserve(
      ranks == 1 ? gpu.free_bytes : gpu.facts->memory_bytes / static_cast<std::uint64_t>(ranks),
      recipe, ranks);
}

std::string gpu_problem() { return find_gpu().problem; }

RunDevice::RunDevice(const Recipe& recipe, std::optional<std::uint64_t> arena_bytes)
    : target_(target_of(recipe)) {
  if (target_.device == DeviceKind::cpu) {
    require<DeviceError>(target_.attention != kernels::AttentionChoice::cudnn,
                         "run.attention is cudnn, but there is no GPU to use; run.attention: auto "
                         "trains without one");
    table_ = &engine::cpu_kernels(recipe.precision.compute());
    device_ = std::make_unique<Device>(make_cpu_memory(), *memory_limit(recipe));
    return;
  }
  const FoundGpu gpu = find_gpu();
  require<DeviceError>(
      gpu.backend != nullptr,
      "run.device is cuda, but there is no GPU to use ({}); run.device: cpu trains "
      "without one",
      gpu.problem);
  require<DeviceError>(
      target_.attention != kernels::AttentionChoice::cudnn || gpu.cudnn_problem.empty(),
      "run.attention is cudnn, but {}; run.attention: auto takes our own kernels",
      gpu.cudnn_problem);
  log::info("device: {}", device_line(gpu));
  const std::uint64_t limit = *memory_limit(recipe);  // before the device's own share is taken
  gpu_ = gpu.facts;
  share_ = gpu.share;
  nccl_problem_ = gpu.nccl_problem;
  backend_ = gpu.backend;
  table_ = &gpu.backend->kernels();
  device_ = std::make_unique<Device>(gpu.backend->open(gpu.share.gpu), arena_bytes.value_or(limit));
}

std::vector<std::string> RunDevice::choices() const {
  return backend_ == nullptr ? std::vector<std::string>{} : backend_->choices(*device_);
}

engine::EnginePlace RunDevice::place() {
  return {.device = device_.get(),
          .table = table_,
          .threads = target_.threads,
          .library_workspace_bytes = target_.library_workspace_bytes,
          .loss_chunk_bytes = target_.loss_chunk_bytes,
          .attention = target_.attention,
          .determinism = target_.determinism,
          .multiplies_codes = target_.multiplies_codes,
          .snapshot_shard_bytes = target_.device_snapshot_shard_bytes()};
}

}  // namespace llmtrain::train
