#pragma once
/// Which GPUs a plugin has machine code for.

#include <string>
#include <string_view>

namespace llmtrain::kernels::cuda {

/// Why a GPU of this compute capability (times ten) cannot run kernels that were compiled for
/// `built_for`, a value of CMAKE_CUDA_ARCHITECTURES with commas, such as "80-real,90a-real"; empty
/// when it can. Machine code runs on its major version from its minor version on, PTX (no "-real")
/// on everything newer; a name with `a` stands for that GPU alone, one with `f` for its major
/// version. Names without a number ("native", "all") are believed.
std::string architecture_problem(std::string_view built_for, int capability);

/// Whether GPUs of this compute capability (times ten) multiply codes of eight bits.
constexpr bool has_code_products(int capability) { return capability >= 89; }
/// Whether GPUs of this compute capability (times ten) have wgmma as it is used here.
constexpr bool has_wgmma(int capability) { return capability == 90; }
/// Whether kernels with wgmma are more than empty in what was compiled for `built_for`: only "90a"
/// has the instructions. Names without a number are believed.
bool has_wgmma_code(std::string_view built_for);

}  // namespace llmtrain::kernels::cuda
