#pragma once
/// Whether the kernels with wgmma are to be trusted on a GPU: they have to compute what the kernels
/// with mma.sync compute.

#include <string>

#include "lib/tensor/dtype.hpp"

namespace llmtrain::kernels::cuda {

/// Of kernels with operands of one type.
struct WarpgroupVerdict {
  bool used = false;
  /// Why not, or why without a trial, on a GPU that has wgmma; empty otherwise.
  std::string problem;
};

/// One type's failure is none of the other's.
struct WarpgroupKernels {
  WarpgroupVerdict bf16, f16;
  /// Of bf16 or fp16, the only types that there are such kernels for.
  const WarpgroupVerdict& of(DType dtype) const { return dtype == DType::f16 ? f16 : bf16; }
};

/// For the device that is current. The first call in a process computes a small attention with
/// both, type by type, and compares; a failed launch or a difference beyond rounding is a problem,
/// and a device that is as new afterwards. Later calls remember. To be called before anything else
/// uses the device. LLMTRAIN_WGMMA=off, for comparisons of both, is a problem too; =untried takes
/// them without a trial, for looking at what they compute where that fails. DeviceError for another
/// value, and where the device does not recover from a failed launch.
WarpgroupKernels try_warpgroup_kernels(int device);

}  // namespace llmtrain::kernels::cuda
