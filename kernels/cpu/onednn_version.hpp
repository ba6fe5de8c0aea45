#pragma once
/// Which library computes the CPU's matrix products.

#include <string>

namespace llmtrain::kernels {

/// "2.6.3 (avx512_core_bf16)": version of oneDNN and the instruction set that it chose here.
std::string onednn_version();

}  // namespace llmtrain::kernels
