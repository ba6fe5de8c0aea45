// Mixtures of experts with run.device: cuda.
#include <cmath>
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/e2e/emulated_gpu.hpp"

namespace llmtrain {

namespace {

/// The tiny recipe with another model.
std::string with_model(std::string_view keys) {
  std::string recipe = tiny_gpu_recipe();
  const std::size_t begin = recipe.find("{architecture: llama"), end = recipe.find('}', begin);
  constexpr std::string_view kShape =
      "vocab_size: 257, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
      "max_position_embeddings: 64";
  return recipe.replace(begin, end + 1 - begin, fmt::format("{{{}, {}}}", keys, kShape));
}

constexpr std::string_view kMixtral =
    "architecture: mixtral, intermediate_size: 24, num_local_experts: 4, "
    "router_aux_loss_coef: 0.02, router_z_loss_coef: 0.01";
constexpr std::string_view kQwen =
    "architecture: qwen3_moe, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 5, "
    "num_experts_per_tok: 3, mlp_only_layers: [0], capacity_factor: 0.7";
constexpr std::string_view kDots =
    "architecture: dots1, intermediate_size: 32, moe_intermediate_size: 24, n_routed_experts: 6, "
    "num_experts_per_tok: 2, n_shared_experts: 1, n_group: 3, topk_group: 2, "
    "bias_update_speed: 0.02";

}  // namespace

TEST_CASE("models of experts train on an emulated GPU like on the CPU, and as planned" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  for (const std::string_view model : {kMixtral, kQwen, kDots}) {
    CAPTURE(model);
    const Workspace cpu(with_model(model)), gpu(with_model(model));
    run_well(cpu, {});
    const auto run = gpu.run({"run.device=cuda"});
    INFO(run.output);
    REQUIRE(run.exit_code == 0);
    CHECK(holds(run.output, {"device: emulated GPU", "6 steps took memory as planned"}));
    // The host knows no numbers of rows, so that steps are recorded as others are.
    CHECK_FALSE(holds(run.output, {"launches are made one by one"}));
    for (const char* key : {"train/loss", "eval/loss", "train/grad_norm", "experts/max_load"}) {
      CAPTURE(key);
      const std::vector<double> x = values_of(cpu, key), y = values_of(gpu, key);
      REQUIRE(x.size() == y.size());
      REQUIRE(!x.empty());
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= 1e-4);
    }
    // What a GPU saved goes on on the CPU, biases of routers included.
    const auto other = gpu.run({"training.max_steps=8"});
    CHECK(other.exit_code == 0);
    CHECK(holds(other.output, {"resumed from step 6"}));
  }
}

TEST_CASE("models of experts in bf16 resume bit for bit on an emulated GPU" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  // Emulated tensor cores multiply whole tiles, whatever a model's size.
  const std::vector<std::string> bf16 = {"run.device=cuda", "precision.compute=bf16",
                                         "training.max_steps=12"};
  const Workspace whole(with_model(kDots)), cut(with_model(kDots)), cpu(with_model(kDots));
  const auto run = whole.run(bf16);
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output, {"12 steps took memory as planned"}));
  const auto stopped = cut.run(bf16, {.signal = SIGTERM, .signal_after = " 2/12 "});
  CHECK(stopped.exit_code == 75);
  run_well(cut, bf16);
  CHECK(fingerprint(cut.path, 12) == fingerprint(whole.path, 12));
  run_well(cpu, {bf16[1], bf16[2]});
  const std::vector<double> x = values_of(cpu, "train/loss"), y = values_of(whole, "train/loss");
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= 2e-2);
}

TEST_CASE("experts are planned for a GPU, as many as its routers take" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workspace here(with_model(kMixtral));
  const auto plan = [&](const char* experts) {
    return here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200",
                      fmt::format("model.num_local_experts={}", experts)});
  };
  const auto few = plan("8");
  CHECK(few.exit_code == 0);
  CHECK(holds(few.output, {"predicted step time", "tokens per second"}));
  const auto many = plan("4097");
  CHECK(many.exit_code == 2);
  CHECK(holds(many.output, {"blocks of 4097 experts", "up to 4096", "run.device: cpu"}));
}

}  // namespace llmtrain
