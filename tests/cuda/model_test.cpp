// Whole models on the GPU against transformers: the goldens of tests/parity.
#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "lib/base/error.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/parity/model_checks.hpp"

namespace llmtrain::test {

namespace {

constexpr DType kNarrow[] = {DType::bf16, DType::f16};

RunOptions on_gpu(DType compute,
                  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic) {
  const kernels::Backend* gpu = kernels::load_backend(DeviceKind::cuda).backend;
  return {.compute = compute,
          .table = &gpu->kernels(),
          .memory = [gpu] { return gpu->open(0); },
          .attention = attention};
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

TEST_CASE("in bf16 and fp16 a GPU's errors are at most twice those of PyTorch's run in that type") {
  for (const DType dtype : kNarrow) {
    CAPTURE(to_string(dtype));
    double worst = 0;
    for (const std::string& name : kGoldenModels) {
      CAPTURE(name);
      const Golden golden(name);
      worst = std::max(worst, check_narrow(golden, run_golden(golden, on_gpu(dtype)), dtype));
    }
    MESSAGE("worst gradient error in ", to_string(dtype), ": ", worst, " of PyTorch's");
  }
}

TEST_CASE(
    "in bf16 and fp16 with attention by cuDNN too, where the model has nothing that it lacks") {
  const kernels::Backend* gpu = kernels::load_backend(DeviceKind::cuda).backend;
  if (kernels::gpu_trial::skip_if(!gpu->report().cudnn_problem.empty(),
                                  kernels::gpu_trial::kNoLibrary)) {
    return;
  }
  for (const DType dtype : kNarrow) {
    int computed = 0;
    for (const std::string& name : kGoldenModels) {
      CAPTURE(name);
      const Golden golden(name);
      try {
        const RunOptions options = on_gpu(dtype, kernels::AttentionChoice::cudnn);
        check_narrow(golden, run_golden(golden, options), dtype);
        ++computed;
      } catch (const RecipeError& error) {
        // Caps, sinks, ALiBi, and heads that are not whole chunks of 16 bytes.
        CHECK(std::string_view(error.what()).find("run.attention") != std::string_view::npos);
      }
    }
    CHECK(computed == 2);  // the others have heads of other sizes
  }
}

}  // namespace llmtrain::test
