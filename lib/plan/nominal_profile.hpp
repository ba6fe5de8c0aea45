#pragma once
/// Profiles of machines from their data sheets: what plans use where nobody has measured.

#include <optional>
#include <string_view>

#include "lib/plan/hardware_profile.hpp"
#include "lib/plan/hardware_sheet.hpp"

namespace llmtrain::plan {

/// Bytes of a GPU that are not the arena's: context, libraries' code, what the driver keeps.
/// Ranks that exchange leave as much again to the library that connects them.
inline constexpr std::uint64_t kGpuReserveBytes = std::uint64_t{1} << 30;

/// Times of every kernel from the sheet's rates and the shares of them that good kernels reach; no
/// kernel was measured. FP8, sparsity and clock drops are not in it.
HardwareProfile nominal_profile(const HardwareSheet& sheet);
/// Of a sheet inside the executable; nothing for an unknown name.
std::optional<HardwareProfile> nominal_profile(std::string_view name);

}  // namespace llmtrain::plan
