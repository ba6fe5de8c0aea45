#pragma once
/// Profiles of GPUs from their data sheets: what plans use where nobody has measured.

#include <optional>
#include <string_view>
#include <vector>

#include "lib/plan/hardware_profile.hpp"

namespace llmtrain::plan {

/// A GPU as its maker describes it: dense rates, without sparsity.
struct GpuSheet {
  std::string_view name, title;
  double bf16_flops = 0;  // and of fp16: tensor cores, FP32 sums
  double tf32_flops = 0;  // the same on FP32 rounded to TF32
  double fp32_flops = 0;  // plain FP32, no TF32
  double fp64_flops = 0;
  double bytes_per_second = 0;
  /// What the driver shows of the memory.
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::uint64_t cache_bytes = 0;
  /// One way: between the GPUs of a machine of eight, and of the adapter that each of them has.
  double node_bytes_per_second = 0, fabric_bytes_per_second = 0;
};
const std::vector<GpuSheet>& gpu_sheets();
/// The sheet of a GPU as its driver names it, e.g. "NVIDIA H100 80GB HBM3"; null for others.
const GpuSheet* sheet_of(std::string_view driver_name, std::uint64_t memory_bytes);

/// Bytes of a GPU that are not the arena's: context, libraries' code, what the driver keeps.
inline constexpr std::uint64_t kGpuReserveBytes = std::uint64_t{1} << 30;

/// Times of every kernel from the sheet's rates and the shares of them that good kernels reach; no
/// kernel was measured. Nothing for an unknown name. FP8, sparsity and clock drops are not in it.
std::optional<HardwareProfile> nominal_profile(std::string_view gpu);

}  // namespace llmtrain::plan
