#pragma once
/// The device of a run: which one the recipe means on this machine, and opening it.

#include <memory>
#include <optional>

#include "kernels/backend.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/engine/engine.hpp"
#include "lib/engine/target.hpp"
#include "lib/plan/hardware_profile.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// run.device with `auto` settled: a GPU where the plugin shows one, else the CPU. Loads the plugin
/// only where the recipe says cuda or the machine has NVIDIA's driver.
DeviceKind device_of(const Recipe& recipe);

/// Of the GPUs that a process sees, the one that it takes.
struct GpuShare {
  int gpu = 0;
  int gpus = 1;
  /// Of this machine's, on that GPU.
  int ranks = 1;
};
/// Ranks of a machine take its GPUs in turn; more ranks than GPUs share them. `gpus` is not 0.
GpuShare share_of_gpus(const JobPlace& place, int gpus);

/// RecipeError for what the recipe asks of training, and the device that is taken does not do. A
/// model that was trained elsewhere can be evaluated there nevertheless.
void check_device_trains(const Recipe& recipe);
/// What a plan of the recipe must know.
engine::Target target_of(const Recipe& recipe);

/// Bytes that the arena may have: run.memory_limit, or else those of the machine: of the GPU's
/// profile if there is one, of the GPU itself (a rank that shares it has its part), of this
/// machine's memory. Nothing when a GPU is planned for that is neither here nor in a profile.
std::optional<std::uint64_t> memory_limit(const Recipe& recipe,
                                          const plan::HardwareProfile* profile = nullptr);

/// Why run.device: cuda has nothing to run on; empty when it has.
std::string gpu_problem();

/// A device that is ready; outlives the engine.
class RunDevice {
 public:
  /// On a GPU an arena of `arena_bytes`, if given, instead of all that memory_limit() allows.
  /// DeviceError, with the reason, when the recipe's device is not there.
  explicit RunDevice(const Recipe& recipe, std::optional<std::uint64_t> arena_bytes = std::nullopt);

  Device& device() const { return *device_; }
  /// Nothing on the CPU.
  const std::optional<kernels::AcceleratorFacts>& gpu() const { return gpu_; }
  /// Of a GPU.
  const GpuShare& share() const { return share_; }
  /// Why ranks on GPUs cannot exchange by NCCL; empty when they can.
  const std::string& nccl_problem() const { return nccl_problem_; }
  /// Null on the CPU.
  const kernels::Backend* backend() const { return backend_; }
  /// Which of several kernels computed what so far, and why: a line for each; none on the CPU.
  std::vector<std::string> choices() const;
  /// For an engine on this device.
  engine::EnginePlace place();

 private:
  engine::Target target_;
  const kernels::KernelTable* table_;
  const kernels::Backend* backend_ = nullptr;
  std::unique_ptr<Device> device_;
  std::optional<kernels::AcceleratorFacts> gpu_;
  GpuShare share_;
  std::string nccl_problem_;
};

}  // namespace llmtrain::train
