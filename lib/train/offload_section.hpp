#pragma once
/// `offload` of the recipe: what lives outside of the device's memory.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engine/activation_offload.hpp"
#include "lib/optim/chunk_layout.hpp"
#include "lib/recipe/load.hpp"

namespace llmtrain::train {

/// What a file of a GPU's optimizer states means.
inline constexpr std::string_view kFilesOfGpu = "nvme, by which the host of a GPU updates";
/// Why keys of files mean nothing to its activations without one.
inline constexpr std::string_view kNoActivationFilesOfGpu =
    "is of files, and activations of a GPU go to the host's memory, of which a plan knows how much "
    "they need";
inline constexpr std::string_view kActivationFilesOfGpu =
    "leave it out, or set offload.activation_place: nvme";
/// Why a CPU has nothing on the host.
inline constexpr std::string_view kNoHostOfCpu =
    "the memory of a CPU is the host's, where optimizer states and masters are already";

inline constexpr std::string_view kNoHostOfCpuActivations =
    "the memory of a CPU is the host's, where activations are already";

enum class OffloadTo : std::uint8_t { none, host, nvme };
enum class ActivationPlace : std::uint8_t { of_device, host, nvme };

struct OffloadSection : recipe::Section {
  recipe::Key<OffloadTo> optimizer{
      this, "optimizer", OffloadTo::none,
      "where optimizer states live between updates: none = in the device's memory; host = of a GPU "
      "in the host's, whose processor updates, while gradients come and updated parameters go; "
      "nvme = in a file on a fast disk, from which an update reads them and to which it writes "
      "them back, of a GPU one of its host's",
      recipe::one_of<OffloadTo>(
          {{"none", OffloadTo::none}, {"host", OffloadTo::host}, {"nvme", OffloadTo::nvme}})};
  recipe::Key<OffloadTo> master{
      this, "master", OffloadTo::none,
      "where masters live between updates, which a recipe keeps beside the copies that products "
      "read: none = in the device's memory; host, nvme = with the optimizer states, which are "
      "there, "
      "too",
      recipe::one_of<OffloadTo>(
          {{"none", OffloadTo::none}, {"host", OffloadTo::host}, {"nvme", OffloadTo::nvme}})};
  recipe::Key<OffloadTo> parameters{
      this, "parameters", OffloadTo::none,
      "where parameters live while no product reads them: none = in the device's memory; host, "
      "nvme = with the optimizer states, from where those of the embedding, a block or the head "
      "come ahead of their use, forth and back",
      recipe::one_of<OffloadTo>(
          {{"none", OffloadTo::none}, {"host", OffloadTo::host}, {"nvme", OffloadTo::nvme}})};
  recipe::Key<std::vector<std::string>> activations{
      this,
      "activations",
      {},
      "operations of the blocks whose saved tensors are elsewhere from the pass forth to the walk "
      "back; `block` means the input of what activation_checkpoint computes again as a whole. A "
      "tensor goes when all operations that keep it are named",
      recipe::any_of(engine::offloaded_names())};
  recipe::Key<ActivationPlace> activation_place{
      this, "activation_place", ActivationPlace::of_device,
      "where these activations are meanwhile: auto = those of a GPU in pinned memory of its host, "
      "those of a CPU, whose memory is the host's, in a file; host, nvme = those of a GPU in one "
      "of "
      "both",
      recipe::one_of<ActivationPlace>({{"auto", ActivationPlace::of_device},
                                       {"host", ActivationPlace::host},
                                       {"nvme", ActivationPlace::nvme}})};
  recipe::Key<recipe::Bytes> activation_buffer{
      this, "activation_buffer", recipe::Bytes{256 << 20},
      "memory of a rank, of a GPU's pinned memory of its host, through which activations pass to a "
      "file: bounds what is read ahead and not yet written, and keeps what fits into it",
      recipe::between(1 << 20, 0x1p44)};
  recipe::Key<std::optional<std::string>> path{
      this, "path", std::nullopt,
      "directory of the files, of which each rank has its own, which are gone when the process "
      "ends; null = offload in run.output_dir",
      recipe::not_empty()};
  recipe::Key<recipe::Bytes> buffer{this, "buffer", recipe::Bytes{256 << 20},
                                    "most memory of a rank through which states, masters and "
                                    "parameters pass to a file: bounds what is read ahead and not "
                                    "yet written; of a GPU also most pinned memory of its host, "
                                    "for gradients and parameters that travel",
                                    recipe::between(64 << 10, 0x1p44)};
  recipe::Key<bool> checksum{
      this, "checksum", true,
      "compare an XXH3 of each block that is read with that of what was written; a difference ends "
      "the run, naming the block and the tensors"};

  bool is_on_host() const { return optimizer() == OffloadTo::host; }
  /// Whether the host of such a device updates.
  bool updates_on_host(DeviceKind device) const {
    return is_on_host() || (optimizer() == OffloadTo::nvme && device != DeviceKind::cpu);
  }
  /// Whether a rank on such a device has files.
  bool uses_files(DeviceKind device) const {
    return optimizer() == OffloadTo::nvme || activations_in_file(device);
  }
  bool activations_in_file(DeviceKind device) const {
    return !activations().empty() &&
           (device == DeviceKind::cpu || activation_place() == ActivationPlace::nvme);
  }

  /// Of optimizer states, masters and parameters; empty where all stay in the device's memory.
  std::optional<optim::Offload> settings() const;
  /// Of activations; likewise.
  std::optional<engine::ActivationOffloadOptions> of_activations() const;
  /// `path`, or what stands for it in a run's directory.
  std::filesystem::path directory(const std::filesystem::path& of_run) const;
  void validate(recipe::Issues& issues) const override;

 private:
  void validate_places(recipe::Issues& issues) const;
};

}  // namespace llmtrain::train
