#pragma once
/// What `llmtrain doctor` measured on a machine: its peaks, and the time of every kernel. One JSON
/// file per machine.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/plan/kernel_model.hpp"
#include "lib/plan/network.hpp"

namespace llmtrain::plan {

/// What a machine is; informative.
struct MachineFacts {
  std::string host, cpu, instruction_set;
  int cores = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t cache_bytes = 0;  // of the last level; 0 = unknown
};

struct HardwareProfile {
  DeviceKind device = DeviceKind::cpu;
  MachineFacts machine;
  /// All times and peaks are those of so many threads together; 0 for a GPU.
  int threads = 0;
  /// Processes of one job that measured at the same time; the times are of one of them.
  int ranks = 1;
  /// Multiply-adds in registers, counted twice, per second; what MFU is a fraction of.
  double peak_fp32_flops = 0, peak_bf16_flops = 0;
  /// Of tensor cores on FP32 rounded to TF32; of data sheets alone.
  double peak_tf32_flops = 0;
  /// Of tensor cores on codes of eight bits, of data sheets alone; 0: the GPU multiplies none.
  double peak_fp8_flops = 0;
  /// Bytes read and written per second by an in-place update of a block larger than the caches.
  double memory_bytes_per_second = 0;
  /// A launch that has next to nothing to do.
  double launch_seconds = 0;
  /// Median over the kernels of (median - low) / low of their repetitions: how disturbed the
  /// measurement was.
  double noise = 0;
  std::map<KernelKey, KernelModel> kernels;
  /// Of all ranks, by the bytes of a call (CollectiveRecord). Empty for one rank.
  std::map<Collective, KernelModel> collectives;
  /// By data sheet, where nobody measured collectives.
  std::optional<Network> network;

  /// Peak of products in this type (fp64: 0, not measured); with `tf32`, of fp32 rounded to it.
  double peak_flops(DType compute, bool tf32 = false) const;
};

std::string to_json(const HardwareProfile& profile);
/// DataError naming `source`, and the byte for bad syntax or the key for bad content.
HardwareProfile parse_profile(std::string_view json, std::string_view source);
HardwareProfile load_profile(const std::filesystem::path& path);

/// $XDG_CACHE_HOME (or ~/.cache)/llmtrain/profile-<host>.json; of several ranks
/// profile-<host>-<n>-ranks.json.
std::filesystem::path default_profile_path(int ranks);
/// The profile at the default path, if there is one.
std::optional<HardwareProfile> load_default_profile(int ranks);

}  // namespace llmtrain::plan
