// Logits, loss and every gradient of the model families against transformers
// (scripts/golden/models.py).
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include "tests/parity/model_checks.hpp"

namespace llmtrain::test {

TEST_CASE("in fp64 logits, loss and gradients are PyTorch's to 1e-9") {
  double worst = 0;
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    const RunOptions options{.compute = DType::f64, .table = &kernels::cpu_reference_table()};
    worst = std::max(worst, check_against(golden, run_golden(golden, options), 1e-9));
  }
  MESSAGE("worst gradient error in fp64: ", worst * 1e-9);
}

TEST_CASE("in fp32 logits, loss and gradients are PyTorch's fp64 values to 1e-5") {
  for (const auto* table : {&kernels::cpu_reference_table(), &kernels::cpu_table()}) {
    CAPTURE(table->device());
    double worst = 0;
    for (const std::string& name : kGoldenModels) {
      CAPTURE(name);
      const Golden golden(name);
      worst = std::max(worst, check_against(golden, run_golden(golden, {.table = table}), 1e-5));
    }
    MESSAGE("worst gradient error in fp32, ", table->device(), ": ", worst * 1e-5);
  }
}

TEST_CASE("in bf16 and fp16 errors are at most twice those of PyTorch's run in that type") {
  for (const auto* table : {&kernels::cpu_reference_table(), &kernels::cpu_table()}) {
    CAPTURE(table->device());
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(to_string(dtype));
      double worst = 0;
      for (const std::string& name : kGoldenModels) {
        CAPTURE(name);
        const Golden golden(name);
        const Outcome ours = run_golden(golden, {.compute = dtype, .table = table});
        worst = std::max(worst, check_narrow(golden, ours, dtype));
      }
      MESSAGE("worst gradient error in ", to_string(dtype), ", ", table->device(), ": ", worst,
              " of PyTorch's");
    }
  }
}

TEST_CASE("deferred weight gradients and recomputation change no bit") {
  const std::vector<std::pair<std::string, RunOptions>> variants{
      {"deferred", {.weight_grads = WeightGrads::deferred}},
      {"recomputed blocks", {.recompute_blocks = true}},
      {"recomputed blocks, deferred",
       {.weight_grads = WeightGrads::deferred, .recompute_blocks = true}},
      {"recomputed operations", {.recomputed_ops = {"norm", "activation", "attention", "up_proj"}}},
      {"recomputed operations, deferred",
       {.weight_grads = WeightGrads::deferred,
        .recomputed_ops = {"norm", "activation", "attention", "up_proj"}}}};
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(to_string(compute));
      const Outcome plain = run_golden(golden, {.compute = compute});
      for (auto [label, options] : variants) {
        CAPTURE(label);
        options.compute = compute;
        const Outcome other = run_golden(golden, options);
        CHECK(other.loss == plain.loss);
        for (const auto& [parameter, gradient] : plain.gradients) {
          CAPTURE(parameter);
          CHECK(other.gradients.at(parameter) == gradient);
        }
      }
    }
  }
}

}  // namespace llmtrain::test
