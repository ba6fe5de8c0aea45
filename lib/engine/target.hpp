#pragma once
/// What a device is to a plan: everything that decides allocations and costs, without the device.

#include <cstdint>

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/quantized_layers.hpp"

namespace llmtrain::engine {

/// Logits that exist at a time unless the recipe says otherwise: as few as leave the head's
/// products fast.
constexpr std::uint64_t default_loss_chunk_bytes(DeviceKind device) {
  return std::uint64_t{device == DeviceKind::cuda ? 1024U : 128U} << 20;
}

struct Target {
  DeviceKind device = DeviceKind::cpu;
  /// Of the CPU's kernels.
  int threads = 1;
  /// Reserved for each product and each attention of a library on a GPU.
  std::uint64_t library_workspace_bytes = 0;
  /// Bound on the logits of one chunk of the loss head.
  std::uint64_t loss_chunk_bytes = default_loss_chunk_bytes(DeviceKind::cpu);
  /// Whether a GPU's products are tuned, which takes memory before the engine does.
  bool tune_products = false;
  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic;
  kernels::Determinism determinism = kernels::Determinism::run;
  /// Whether the device has products of codes of eight bits (kernels::CodeMatmul).
  bool multiplies_codes = false;
  /// A save goes on beside the run, from a copy in host memory, to files of so many bytes at
  /// most; 0: in place of the run.
  std::uint64_t snapshot_shard_bytes = 0;
  /// EnginePlace::snapshot_shard_bytes; beside a GPU the copy is pinned memory of the host.
  std::uint64_t device_snapshot_shard_bytes() const {
    return device == DeviceKind::cpu ? snapshot_shard_bytes : 0;
  }
  /// The layout, and the rank in it that is planned.
  MeshShape mesh;
  int rank = 0;
};

/// The table of the meta device that stands for `device`: same workspaces, nothing runs.
const kernels::KernelTable& planning_table(DeviceKind device);

/// Why products in FP8 multiply bf16 numbers, not codes; empty where they multiply codes.
/// `device_does`: as in Target.
std::string_view obstacle_to_codes(const QuantizationOptions& options,
                                   kernels::Determinism determinism, bool device_does);

/// The CPU's kernels for this type: fp64 is computed by the reference.
const kernels::KernelTable& cpu_kernels(DType compute);

}  // namespace llmtrain::engine
