#pragma once
/// The plan: the real engine, executed on the meta device.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/code_matmul.hpp"
#include "lib/engine/engine.hpp"
#include "lib/engine/target.hpp"
#include "lib/param/layer_precision.hpp"
#include "lib/plan/network.hpp"

namespace llmtrain::plan {

/// All launches of one pass that are alike.
struct LaunchGroup {
  std::string name;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> sizes{};
  kernels::Cost cost;  // of one launch
  std::int64_t count = 0;
};

/// What a pass does next: a launch (index of its group), the start of a collective (likewise), or a
/// wait for the `index`-th collective to have started.
struct PassEvent {
  enum class Kind : std::uint8_t { launch, start, wait };
  Kind kind = Kind::launch;
  std::uint32_t index = 0;
};

/// Events [begin, end) of an action of a pipeline.
struct ActionEvents {
  parallel::Action action;
  std::size_t begin = 0, end = 0;
};

struct PassPlan {
  Peak peak;
  /// Arena bytes touched up to the end of the pass: the peak plus what fragmentation costs.
  std::uint64_t extent_bytes = 0;
  std::vector<LaunchGroup> launches;         // in the order of first appearance
  std::vector<CollectiveGroup> collectives;  // likewise
  std::vector<PassEvent> events;             // all of them, in their order
  std::vector<ActionEvents> actions;         // of a pipeline; likewise
  double flops() const;
};

struct Plan {
  DeviceKind device = DeviceKind::cpu;
  /// Products of fp32 round to TF32.
  bool tf32 = false;
  kernels::Determinism determinism = kernels::Determinism::run;
  /// With compute fp8: which products are quantized.
  std::vector<LayerPrecision> layers;
  std::int64_t parameters = 0;
  std::int64_t parameters_per_block = 0;
  std::int64_t tokens_per_step = 0;  // of all ranks
  MeshShape mesh;
  int rank = 0;
  /// Three times the products of the forward pass, as recorded, per token: what MFU counts.
  double model_flops_per_token = 0;
  /// Held as long as the run: parameters, masters, gradients, optimizer state.
  CategoryBytes held{};
  /// Choosing algorithms for products, building the engine and its first values; writing a
  /// checkpoint.
  Peak init, save;
  PassPlan step;
  PassPlan eval;
  std::uint64_t checkpoint_bytes = 0;
  /// Of the whole model, wherever they are: what docs/optimizers.md says per parameter.
  std::uint64_t optimizer_state_bytes = 0;
  /// What each durable checkpoint has beside that: the model for Hugging Face's programs, if the
  /// recipe asks for it.
  std::uint64_t export_bytes = 0;
  /// Of this rank: optimizer states, masters and parameters in a file, which every update reads and
  /// writes; 0: in memory. And which of these.
  std::uint64_t offloaded_bytes = 0;
  std::string offloaded_contents;
  /// What a step reads of parameters in the file beside that, for its products, and what a GPU's
  /// host sends it of them.
  std::uint64_t offloaded_parameter_reads = 0, brought_parameter_bytes = 0;
  /// Likewise: activations, the most that is there at a time, and what a step writes and reads at
  /// most.
  std::uint64_t activation_file_bytes = 0, activation_traffic_bytes = 0;
  std::uint64_t durable_bytes() const { return checkpoint_bytes + export_bytes; }
  /// Beside a GPU: pinned memory of the host, held as long as the run, for the copy from which a
  /// save is written beside the run. What exchanges through host memory need is not in it.
  std::uint64_t pinned_bytes = 0;
  /// Beside a GPU: what its host has for updates that it computes (offload.optimizer: host, nvme).
  std::optional<optim::HostUpdateFacts> host_updates;
  std::uint64_t host_update_bytes() const {
    return host_updates ? host_updates->memory_bytes + host_updates->pinned_bytes : 0;
  }
  /// Beside a GPU: what its host has of activations (offload.activations), pinned as long as the
  /// run, and what a step copies there and back.
  std::optional<engine::DeviceActivationFacts> device_activations;
  std::uint64_t host_activation_bytes() const {
    return device_activations ? device_activations->pinned_bytes : 0;
  }
  /// On a GPU: launches are recorded once and queued as a whole (run.cuda_graphs).
  bool records_launches = true;
  /// But for these parts of a step (Engine::not_recorded).
  std::string not_recorded;
  /// Allocations of one training step, line by line.
  std::vector<AllocationEvent> step_trace;
  /// For a GPU: the different products of the step and of the evaluation, whose addresses stand for
  /// their alignment only, and the memory in which they are tuned before the engine is built.
  std::vector<kernels::Product> products;
  std::uint64_t tuning_bytes = 0;

  const Peak& peak(Phase phase) const;
  /// Largest of all phases.
  std::uint64_t peak_bytes() const;
  std::uint64_t extent_bytes() const;
};

/// Names the memory of Plan::tuning_bytes.
inline constexpr std::string_view kTuningTag = "tuning of products";

/// As large an arena as addresses allow: nothing fails for want of memory that does not exist.
inline constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 50;

/// Builds on the meta device what a rank of a run would build, without a step: RecipeError for what
/// only the model's parameters and activations show, like a pattern of optimizer.groups that
/// selects none of them, or heads that the ranks cannot share.
void check_parameters(const engine::EngineOptions& options, const MeshShape& mesh = {},
                      DeviceKind device = DeviceKind::cpu);

/// Where an engine is that only plans: on a meta device, as the target's rank. `collectives` (may
/// be null) is told of its exchanges.
engine::EnginePlace meta_place(Device& device, const engine::Target& target,
                               CollectiveRecorder* collectives);

/// Executes init, one step of `samples_per_step` samples, which the ranks of the target's mesh
/// share, and one evaluation pass on an arena that does not exist. What it says of the model it
/// takes from `of_same_run`, the plan of another rank, where there is one.
Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step,
               const engine::Target& target, const Plan* of_same_run = nullptr);
/// For so many threads of the CPU.
Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step, int threads);

}  // namespace llmtrain::plan
