// Whole models on the GPU against transformers: the goldens of tests/parity.
#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "tests/parity/model_checks.hpp"

namespace llmtrain::test {

namespace {

RunOptions on_gpu(DType compute) {
  const kernels::Backend* gpu = kernels::load_backend(DeviceKind::cuda).backend;
  return {.compute = compute, .table = &gpu->kernels(), .memory = [gpu] { return gpu->open(0); }};
}

}  // namespace

TEST_CASE("in fp64 and fp32 a GPU's logits, loss and gradients are PyTorch's fp64 values") {
  double worst = 0;
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    check_against(golden, run_golden(golden, on_gpu(DType::f64)), 1e-9);
    worst = std::max(worst, check_against(golden, run_golden(golden, on_gpu(DType::f32)), 1e-5));
  }
  MESSAGE("worst gradient error in fp32: ", worst * 1e-5);
}

TEST_CASE("in bf16 a GPU's errors are at most twice those of PyTorch's bf16 run") {
  double worst = 0;
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    worst = std::max(worst, check_bf16(golden, run_golden(golden, on_gpu(DType::bf16))));
  }
  MESSAGE("worst gradient error in bf16: ", worst, " of PyTorch's");
}

}  // namespace llmtrain::test
