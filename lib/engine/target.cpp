#include "lib/engine/target.hpp"

#include "kernels/cuda/rules/workspace.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::engine {

const kernels::KernelTable& planning_table(DeviceKind device) {
  switch (device) {
    case DeviceKind::cpu:
      return kernels::meta_table();
    case DeviceKind::cuda:
      return kernels::meta_cuda_table();
    case DeviceKind::meta:
      break;
  }
  fail("nothing runs on the {} device", to_string(device));
}

std::string_view obstacle_to_codes(const QuantizationOptions& options,
                                   kernels::Determinism determinism, bool device_does) {
  if (options.products == OperandProducts::bf16) return "precision.fp8.products is bf16";
  if (options.scaling == OperandScaling::block) return "precision.fp8.scaling is block";
  if (determinism == kernels::Determinism::layout) return "run.determinism is layout";
  return device_does ? "" : "the device multiplies no codes";
}

const kernels::KernelTable& cpu_kernels(DType compute) {
  return compute == DType::f64 ? kernels::cpu_reference_table() : kernels::cpu_table();
}

}  // namespace llmtrain::engine
