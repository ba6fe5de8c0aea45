#pragma once
/// Data sheets of machines, configs/hardware/*.yaml: rates, memory, and what connects ranks. Plans
/// take their times from them where nobody has measured.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/plan/network.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::plan {

/// What a kernel reaches of a rate on the sheet, 0 to 1.
struct AchievedShares {
  double products = 0;            // large ones, of the rate of their type
  double attention_forward = 0;   // causal by tiles, a head of 128, likewise
  double attention_backward = 0;  // likewise
  double memory = 0;              // one pass over memory, of the bandwidth
};

/// A machine as its maker describes it: dense rates, without sparsity.
struct HardwareSheet {
  std::string name;  // "h100" of one that the executable brings
  std::string file;  // of any other
  std::string title;
  DeviceKind device = DeviceKind::cuda;
  double bf16_flops = 0;  // and of fp16 on a GPU: tensor cores, FP32 sums
  double fp8_flops = 0;   // of a GPU: the same on codes of eight bits; 0: it multiplies none
  double tf32_flops = 0;  // of a GPU: the same on FP32 rounded to TF32
  double fp32_flops = 0;  // plain FP32, no TF32
  double fp64_flops = 0;
  double bytes_per_second = 0;
  /// What a GPU's driver shows of the memory.
  std::uint64_t memory_bytes = 0;
  std::uint64_t cache_bytes = 0;
  /// Of a GPU; its name as the driver has it contains `driver_name`; empty: unknown.
  int multiprocessors = 0;
  std::string driver_name;
  /// Of a CPU's rank, to which all rates belong.
  int threads = 0;
  double launch_seconds = 0;  // of a launch behind another one
  AchievedShares achieved;
  /// With the rates that long transfers reach.
  Network network;
};

/// Those inside the executable, by name.
const std::vector<HardwareSheet>& hardware_sheets();
/// The sheet of a GPU as its driver names it, e.g. "NVIDIA H100 80GB HBM3"; null for others.
const HardwareSheet* sheet_of(std::string_view driver_name, std::uint64_t memory_bytes);

/// From a file, which may `include:` those of the executable by name. RecipeError with all issues.
HardwareSheet load_sheet(const std::filesystem::path& file);
/// From text that `source` names in messages.
HardwareSheet parse_sheet(const std::string& text, const std::filesystem::path& source);

/// Text of configs/hardware/<name>.yaml as it was compiled in, or nothing.
std::optional<std::string> builtin_sheet(std::string_view name);
std::vector<std::string_view> builtin_sheet_names();

}  // namespace llmtrain::plan
