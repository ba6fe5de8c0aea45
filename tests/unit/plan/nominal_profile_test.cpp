// Plans for GPUs that nobody has measured.
#include "lib/plan/nominal_profile.hpp"

#include <doctest/doctest.h>

#include "kernels/code_matmul.hpp"
#include "kernels/cuda/rules/workspace.hpp"
#include "lib/base/error.hpp"
#include "lib/plan/predict.hpp"
#include "tests/support/engine_recipe.hpp"

using namespace llmtrain;
using namespace llmtrain::plan;

namespace {

double seconds_of_product(const HardwareProfile& gpu, double m, double n, double k) {
  const auto& model = gpu.kernels.at({"matmul", DType::bf16, 0});
  return model.predict({{m, n, k}, 2 * m * n * k});
}

}  // namespace

TEST_CASE("every kernel of a step has a time on every machine, and none exceeds its sheet") {
  for (const HardwareSheet& sheet : hardware_sheets()) {
    CAPTURE(sheet.name);
    const auto gpu = nominal_profile(sheet.name);
    REQUIRE(gpu.has_value());
    for (const auto& [key, model] : gpu->kernels) {
      CAPTURE(to_string(key));
      const bool products = num_axes(key.name) > 1;
      const double peak = !products                   ? sheet.bytes_per_second
                          : is_half_width(key.dtype)  ? sheet.bf16_flops
                          : key.dtype == DType::f64   ? sheet.fp64_flops
                          : key.name == "matmul_tf32" ? sheet.tf32_flops
                          : key.name == "code_matmul" ? sheet.fp8_flops
                                                      : sheet.fp32_flops;
      for (std::size_t i = 0; i < model.work().size(); ++i) {
        CHECK(model.work()[i] / model.seconds()[i] <= peak);
        CHECK(model.seconds()[i] >= gpu->launch_seconds);
      }
    }
  }
  CHECK_FALSE(nominal_profile("h2000").has_value());
}

TEST_CASE("a GPU is found by its driver's name and memory") {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  CHECK(sheet_of("NVIDIA H100 80GB HBM3", 80 * gib)->name == "h100");
  CHECK(sheet_of("NVIDIA H200", 140 * gib)->name == "h200");
  CHECK(sheet_of("NVIDIA H100 PCIe", 80 * gib) == nullptr);
  CHECK(sheet_of("NVIDIA H100 NVL", 94 * gib) == nullptr);
  CHECK(sheet_of("NVIDIA GeForce RTX 4090", 24 * gib) == nullptr);
}

TEST_CASE("large products come near their share of the peak, small and narrow ones do not") {
  const auto gpu = *nominal_profile("h200");
  const auto rate = [&](double m, double n, double k) {
    return 2 * m * n * k / seconds_of_product(gpu, m, n, k) / gpu.peak_bf16_flops;
  };
  CHECK(rate(16384, 16384, 4096) > 0.7);
  CHECK(rate(256, 1024, 1024) < 0.2);
  // A long sum is split over multiprocessors that have no tile of their own.
  CHECK(rate(1024, 1024, 65536) > 2 * rate(1024, 1024, 1024));
}

TEST_CASE("a data sheet gives every kernel of a GPU a time") {
  const auto gpu = *nominal_profile("h200");
  for (const kernels::WorkspaceRow& row : kernels::meta_cuda_table().workspaces()) {
    CAPTURE(row.name);
    const DType dtype = row.name == kernels::CodeMatmul::name ? DType::u8 : DType::f32;
    const std::string_view name = timed_name({.name = row.name, .cost = {}, .dtype = dtype});
    CHECK(gpu.kernels.contains({std::string(name), dtype, 0}));
  }
}

TEST_CASE("a plan for a GPU has the GPU's workspaces beside the same tensors, and times") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: llama, vocab_size: 300, hidden_size: 32, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 32}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4, max_steps: 4}
precision: {compute: bf16}
)",
                        .overrides = {}});
  const auto plan_for = [&](const engine::Target& target) {
    return make_plan(recipe.options(1), 4, target);
  };
  constexpr std::uint64_t kWorkspace = std::uint64_t{64} << 20;
  const Plan cpu = plan_for({.threads = 2});
  const Plan gpu = plan_for({.device = DeviceKind::cuda, .library_workspace_bytes = kWorkspace});
  CHECK(gpu.device == DeviceKind::cuda);
  CHECK(cpu.held == gpu.held);
  CHECK(cpu.step.flops() == gpu.step.flops());
  constexpr auto kIndex = static_cast<std::size_t>(Category::workspace);
  CHECK(gpu.step.peak.per_category[kIndex] == kWorkspace);
  CHECK(cpu.step.peak.per_category[kIndex] < kWorkspace);

  test::EngineRecipe wide;
  recipe::load(wide, {.file = "test.yaml",
                      .text = R"(
model: {architecture: llama, vocab_size: 300, hidden_size: 32, num_hidden_layers: 2, head_dim: 264,
        num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 32}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4, max_steps: 4}
)",
                      .overrides = {}});
  CHECK_THROWS_WITH_AS(make_plan(wide.options(1), 4, {.device = DeviceKind::cuda}),
                       doctest::Contains("head_dim is 264"), RecipeError);

  const RunShape run{.device = DeviceKind::cuda, .compute = DType::bf16, .steps = 1, .tokens = 64};
  const PlannedTime time = planned_time(gpu, *nominal_profile("h200"), run, "h200");
  CHECK(time.step.seconds > 0);
  CHECK(mfu_formula(gpu, {time.step.peak_flops, DType::bf16, 0}).find("dense peak of bf16") !=
        std::string::npos);
  const RunShape other{.threads = 0, .compute = DType::bf16};
  CHECK_THROWS_WITH_AS(planned_time(gpu, *nominal_profile("h200"), other, "h200"),
                       doctest::Contains("times of a cuda"), RecipeError);
}

TEST_CASE(
    "products in TF32 have a name, a rate and a peak of their own, and nothing else changes") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: llama, vocab_size: 4096, hidden_size: 2048, num_hidden_layers: 1,
        num_attention_heads: 16, intermediate_size: 4096, max_position_embeddings: 1024}
training: {seq_len: 1024, micro_batch_size: 8, global_batch_size: 8, max_steps: 4}
)",
                        .overrides = {}});
  const auto plan_with = [&](bool tf32) {
    engine::EngineOptions options = recipe.options(1);
    options.tf32 = tf32;
    return make_plan(options, 8, {.device = DeviceKind::cuda});
  };
  const Plan plain = plan_with(false), tf32 = plan_with(true);
  CHECK(hash_of(plain.step_trace) == hash_of(tf32.step_trace));
  const RunShape run{.device = DeviceKind::cuda, .steps = 1, .tokens = 8192};
  const auto h200 = *nominal_profile("h200");
  const StepPrediction slow = planned_time(plain, h200, run, "h200").step;
  const StepPrediction fast = planned_time(tf32, h200, run, "h200").step;
  CHECK(slow.peak_flops == h200.peak_fp32_flops);
  CHECK(fast.peak_flops == h200.peak_tf32_flops);
  REQUIRE(slow.kernels.size() == fast.kernels.size());
  const auto seconds_of = [](const StepPrediction& step, std::string_view name) {
    for (const KernelTime& kernel : step.kernels) {
      if (kernel.name == name) return kernel.seconds;
    }
    return 0.0;
  };
  for (const char* form : {"forward", "input grad", "weight grad"}) {
    const double before = seconds_of(slow, fmt::format("matmul {} fp32", form));
    const double now = seconds_of(fast, fmt::format("matmul {} tf32", form));
    CHECK(now > 0);
    CHECK(before > 4 * now);
    CHECK(seconds_of(fast, fmt::format("matmul {} fp32", form)) == 0);
  }
  CHECK(seconds_of(slow, "attention_forward fp32") == seconds_of(fast, "attention_forward fp32"));
  CHECK(mfu_formula(tf32, {fast.peak_flops, DType::f32, 0}).find("dense peak of tf32") !=
        std::string::npos);
}

TEST_CASE("products of codes have a name and a rate of their own, and are tuned") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: llama, vocab_size: 300, hidden_size: 2048, num_hidden_layers: 3,
        num_attention_heads: 16, intermediate_size: 8192, max_position_embeddings: 512}
training: {seq_len: 512, micro_batch_size: 8, global_batch_size: 8, max_steps: 4}
precision: {compute: fp8}
)",
                        .overrides = {}});
  const auto plan_with = [&](bool codes) {
    return make_plan(recipe.options(1), 8,
                     {.device = DeviceKind::cuda,
                      .library_workspace_bytes = 1 << 20,
                      .tune_products = true,
                      .multiplies_codes = codes});
  };
  const Plan in_bf16 = plan_with(false), of_codes = plan_with(true);
  CHECK(in_bf16.step.flops() == of_codes.step.flops());
  // Four layers of the middle block in three forms each.
  const auto num_products = [](const Plan& plan) {
    return std::ranges::count_if(plan.products, [](const auto& p) { return p.codes.has_value(); });
  };
  CHECK(num_products(in_bf16) == 0);
  CHECK(num_products(of_codes) == 12);
  const RunShape run{.device = DeviceKind::cuda, .compute = DType::bf16, .steps = 1, .tokens = 64};
  const auto seconds = [&](const Plan& plan, std::string_view row) {
    const PlannedTime time = planned_time(plan, *nominal_profile("h200"), run, "h200");
    for (const KernelTime& kernel : time.step.kernels) {
      if (kernel.name == row) return kernel.seconds / kernel.cost.flops;
    }
    return 0.0;
  };
  for (const char* form : {"matmul forward ", "matmul input grad ", "matmul weight grad "}) {
    CAPTURE(form);
    const double narrow = seconds(of_codes, std::string(form) + "fp8");
    const double wide = seconds(in_bf16, std::string(form) + "bf16");
    CHECK(narrow > 0.45 * wide);
    CHECK(narrow < 0.7 * wide);
  }
  CHECK(of_codes.step.peak.total_bytes <= in_bf16.step.peak.total_bytes);
  CHECK(nominal_profile("h200")->peak_fp8_flops > 0);
  CHECK(nominal_profile("a100")->peak_fp8_flops == 0);
  CHECK_THROWS_WITH_AS(planned_time(of_codes, *nominal_profile("a100"), run, "a100"),
                       doctest::Contains("code_matmul"), RecipeError);
}

TEST_CASE("the products of a GPU's plan differ, and the largest fits into what tuning takes") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = R"(
model: {architecture: gpt2, vocab_size: 300, hidden_size: 32, num_hidden_layers: 3,
        num_attention_heads: 2, max_position_embeddings: 32}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 8, max_steps: 4}
precision: {compute: bf16}
)",
                        .overrides = {}});
  constexpr std::uint64_t kWorkspace = std::uint64_t{1} << 20;
  const auto plan_with = [&](const engine::Target& target) {
    return make_plan(recipe.options(1), 8, target);
  };
  const Plan plan = plan_with(
      {.device = DeviceKind::cuda, .library_workspace_bytes = kWorkspace, .tune_products = true});
  // qkv, out, up, down and the head, each in three forms; the logits are one product more.
  CHECK(plan.products.size() >= 15);
  CHECK(plan.products.size() < 30);
  std::uint64_t operands = 0;
  for (const auto& [mm, codes] : plan.products) {
    CHECK_FALSE(codes.has_value());
    operands = std::max(operands, mm.a.bytes() + mm.b.bytes() + mm.c.bytes() +
                                      (mm.bias.defined() ? mm.bias.bytes() : 0));
  }
  CHECK(plan.tuning_bytes >= kWorkspace + operands);
  CHECK(plan.tuning_bytes <= kWorkspace + operands + 8 * 256);
  CHECK(plan.init.tag == kTuningTag);
  CHECK(plan.init.total_bytes == plan.tuning_bytes);
  CHECK(plan.extent_bytes() >= plan.tuning_bytes);
  for (const engine::Target& target :
       {engine::Target{.device = DeviceKind::cuda, .library_workspace_bytes = kWorkspace},
        engine::Target{.tune_products = true}}) {
    const Plan untuned = plan_with(target);
    CHECK(untuned.products.empty());
    CHECK(untuned.tuning_bytes == 0);
    CHECK(untuned.init.tag != kTuningTag);
  }
}
