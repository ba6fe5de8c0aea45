// FP8: it learns, its records say what quantizing did, and keys that mean nothing are refused.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

std::string fp8(std::string_view keys) {
  return fmt::format("precision={{compute: fp8, fp8: {{{}, include: [\"*\"]}}}}", keys);
}

// The last loss of 40 steps; what the run says of its memory is checked.
double last_loss(const Workspace& here, std::vector<std::string> with) {
  with.push_back("training.max_steps=40");
  const auto result = here.run(with);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(holds(result.output, {"40 steps took memory as planned"}));
  double loss = 0;
  for (const train::StepRecord& record : here.metrics()) {
    loss = record.number(train::metric::kLoss).value_or(loss);
  }
  return loss;
}

// Each step has said what its operands were.
void check_records(const Workspace& here) {
  int steps = 0;
  for (const train::StepRecord& record : here.metrics()) {
    if (!record.number(train::metric::kLoss)) continue;
    ++steps;
    for (const std::string_view operand : {"input", "weight", "output_grad"}) {
      const auto amax = record.number(fmt::format("fp8/amax/{}", operand));
      const auto saturated = record.number(fmt::format("fp8/saturated/{}", operand));
      REQUIRE(amax.has_value());
      REQUIRE(saturated.has_value());
      CHECK(*amax > 0);
      CHECK(std::isfinite(*amax));
      CHECK(*saturated >= 0);
    }
  }
  CHECK(steps == 40);
}

}  // namespace

TEST_CASE("FP8 learns like bf16, whatever its scales follow from, and says what did not fit") {
  const Workspace wide(kTinyRecipe);
  const double expected = last_loss(wide, {"precision.compute=bf16"});
  for (const train::StepRecord& record : wide.metrics()) {
    CHECK_FALSE(record.number("fp8/amax/input").has_value());
  }
  for (const char* scaling : {"scaling: current", "scaling: delayed, amax_history: 4",
                              "scaling: block", "scaling: block, power_of_two_scales: false"}) {
    CAPTURE(scaling);
    const Workspace narrow(kTinyRecipe);
    const double found = last_loss(narrow, {fp8(scaling)});
    CHECK(found != expected);
    CHECK(std::abs(found - expected) < 0.05 * expected);
    check_records(narrow);
  }
}

TEST_CASE("on an emulated GPU FP8 learns, too" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workspace wide(kTinyRecipe);
  const double expected = last_loss(wide, {"precision.compute=bf16"});
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  const Workspace narrow(kTinyRecipe);
  const double found = last_loss(narrow, {fp8("scaling: delayed"), "run.device=cuda"});
  CHECK(std::abs(found - expected) < 0.05 * expected);
  check_records(narrow);
  ::unsetenv("LLMTRAIN_CUDA_PLUGIN");
}

TEST_CASE("on a GPU products multiply codes as planned, and a run says whether they do" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin plugin(LLMTRAIN_EMULATED_GPU);
  const auto loss_of = [](const std::string& keys, const std::string& more,
                          const std::vector<std::string>& texts) {
    CAPTURE(keys);
    CAPTURE(more);
    const Workspace here(tiny_gpu_recipe());
    const auto result = here.run({fp8(keys), "run.device=cuda", kLongEnough, more});
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    CHECK(holds(result.output, texts));
    CHECK(holds(result.output, {kLongAsPlanned}));
    const std::vector<double> losses = values_of(here, std::string(train::metric::kLoss));
    REQUIRE(!losses.empty());
    return losses.back();
  };
  const std::string same = "run.seed=5";
  const double wide =
      loss_of("scaling: current, products: bf16", same,
              {"fp8: products in bf16", "codes stand for: precision.fp8.products is bf16"});
  for (const char* scaling : {"scaling: current", "scaling: delayed"}) {
    const double found =
        loss_of(scaling, same, {"fp8: products of codes by cuBLASLt in 8 of 8 layers\n"});
    CHECK(found != wide);
    CHECK(std::abs(found - wide) < 0.02 * wide);
  }
  // The last layer of each block sums over 40 numbers.
  loss_of("scaling: current", "model.intermediate_size=40",
          {"cuBLASLt in 6 of 8 layers; in the others in bf16: their sizes are no multiples of 16"});
  loss_of("scaling: current", "model.intermediate_size=36", {"cuBLASLt in 4 of 8 layers"});
  loss_of("scaling: block", same, {"fp8: products in bf16", "precision.fp8.scaling is block"});
  loss_of("scaling: current", "run.determinism=layout",
          {"fp8: products in bf16", "run.determinism is layout"});
}

TEST_CASE("plan and run in FP8 say which products stay in bf16, and why") {
  std::string recipe(kTinyRecipe);
  const std::size_t model = recipe.find("model:");
  recipe.replace(model, recipe.find("tokenizer:") - model, R"(
model: {architecture: dots1, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3,
        num_attention_heads: 2, intermediate_size: 24, max_position_embeddings: 32,
        n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 12}
)");
  const Workspace here(recipe);
  const std::string keys =
      "precision={compute: fp8, fp8: {include: [\"model.layers.0.*\"], exclude: [\"*.o_proj.*\"]}}";
  const std::vector<std::string> texts = {
      "linear layers; bf16: precision.fp8.exclude (2: model.layers.0.self_attn.o_proj.weight ...)",
      "router (2: model.layers.1.mlp.gate.weight ...)",
      "experts (4: model.layers.1.mlp.experts.gate_proj.weight ...)", "last block (",
      "head (lm_head.weight)"};
  const auto plan = here.call({"plan", "recipe.yaml", keys});
  CHECK(plan.exit_code == 0);
  CHECK(holds(plan.output, texts));
  const auto json = here.call({"plan", "recipe.yaml", "--json", keys});
  CHECK(holds(json.output, {"\"fp8\"", "lm_head.weight", "precision.fp8.include"}));
  const auto run = here.run({keys, "training.max_steps=1"});
  CHECK(run.exit_code == 0);
  CHECK(holds(run.output, texts));
  const auto high =
      here.run({"precision.compute=bf16", "run.output_dir=high", "training.max_steps=1"});
  CHECK(high.exit_code == 0);
  CHECK_FALSE(holds(high.output, {"linear layers; bf16"}));
  for (const auto& [pattern, text] :
       {std::pair("lm_head.weight", "lm_head.weight is the head"),
        std::pair("*.mlp.gate.*", "model.layers.1.mlp.gate.weight is a router, whose fp32 logits"),
        std::pair("*.experts.*",
                  "is of experts, whose products of groups of rows take no codes")}) {
    const auto refused =
        here.run({fmt::format("precision={{compute: fp8, fp8: {{include: [\"{}\"]}}}}", pattern)});
    CAPTURE(refused.output);
    CHECK(refused.exit_code == 2);
    CHECK(holds(refused.output, {"precision.fp8.include", text}));
  }
}

TEST_CASE("a run may enter FP8 and leave it, and says so") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"precision.compute=bf16", "training.max_steps=2"});
  const auto entered = here.run({fp8("scaling: delayed"), "training.max_steps=4"});
  INFO(entered.output);
  REQUIRE(entered.exit_code == 0);
  CHECK(holds(entered.output, {"resumed from step 2", "has no FP8 scales: they begin anew"}));
  const auto left = here.run({"precision.compute=bf16"});
  INFO(left.output);
  REQUIRE(left.exit_code == 0);
  CHECK(holds(left.output, {"resumed from step 4", "FP8 scales are not used"}));
  const auto longer = here.run({fp8("scaling: delayed"), "training.max_steps=8"});
  CHECK(longer.exit_code == 0);
}

TEST_CASE("a run may go on with other layers in FP8, whose scales begin anew") {
  const Workspace here(kTinyRecipe);
  const auto quantized = [](std::string_view include) {
    return fmt::format("precision={{compute: fp8, fp8: {{scaling: delayed, include: [\"{}\"]}}}}",
                       include);
  };
  run_well(here, {quantized("*"), "training.max_steps=2"});
  const auto fewer = here.run({quantized("*.down_proj.*"), "training.max_steps=3"});
  CHECK_MESSAGE(fewer.exit_code == 0, fewer.output);
  CHECK(holds(fewer.output, {"other layers are in FP8 than before: 0 of their "}));
  const auto more = here.run({quantized("*"), "training.max_steps=4"});
  CHECK_MESSAGE(more.exit_code == 0, more.output);
  CHECK(holds(more.output, {"begin anew, 0 of the checkpoint are not used"}));
  CHECK(!holds(more.output, {"other layers are in FP8 than before: 0 of their "}));
}

TEST_CASE("keys of FP8 that mean nothing are refused") {
  const Workspace here(kTinyRecipe);
  const auto refused = [&](const std::string& precision, const std::vector<std::string>& texts) {
    CAPTURE(precision);
    const auto result = here.run({"precision=" + precision});
    INFO(result.output);
    CHECK(result.exit_code == 2);
    CHECK(holds(result.output, texts));
  };
  refused("{compute: bf16, fp8: {scaling: block}}",
          {"precision.fp8.scaling", "belongs to compute fp8"});
  refused("{fp8: {include: [\"*\"]}}", {"precision.fp8.include", "belongs to compute fp8"});
  refused("{compute: fp8, fp8: {margin: 1}}", {"precision.fp8.margin", "scaling delayed"});
  refused("{compute: fp8, fp8: {scaling: block, amax_history: 8}}",
          {"precision.fp8.amax_history", "scaling delayed"});
  refused("{compute: fp8, fp8: {scaling: block, amax_algorithm: max}}",
          {"precision.fp8.amax_algorithm", "scaling delayed"});
  refused("{compute: fp8, fp8: {scaling: delayed, power_of_two_scales: true}}",
          {"precision.fp8.power_of_two_scales", "scaling block"});
  refused("{compute: bf16, fp8: {products: bf16}}",
          {"precision.fp8.products", "belongs to compute fp8"});
  refused("{compute: fp8, fp8: {scaling: block, products: bf16}}",
          {"precision.fp8.products", "scaling current and delayed"});
  refused("{compute: fp8}", {"no linear layer is quantized", "include"});
  refused("{compute: fp8, fp8: {include: [\"*.router.*\"]}}",
          {"precision.fp8.include", "`*.router.*` selects no linear layer"});
}

}  // namespace llmtrain
