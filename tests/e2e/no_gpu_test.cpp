// What a run, a plan and doctor say of GPUs where there is none.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/e2e/emulated_gpu.hpp"

namespace llmtrain {

TEST_CASE("without a plugin a GPU is planned for, and a run on it is refused with the reason") {
  const Workspace here(kTinyRecipe);
  const Plugin none("/nonexistent/plugin.so");
  const auto run = here.run({"run.device=cuda"});
  CHECK(run.exit_code == 1);
  CHECK(holds(run.output, {"error: run.device is cuda", "/nonexistent/plugin.so", "run.device: cpu",
                           "--profile h200"}));

  const auto plan = here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200"});
  CHECK(plan.exit_code == 0);
  CHECK(holds(plan.output, {"cuda", "of 139.40 GiB", "not measured", "products reach 75 %",
                            "dense peak", "MFU"}));
  const auto unknown = here.call({"plan", "recipe.yaml", "--device", "cuda"});
  CHECK(unknown.exit_code == 0);
  CHECK(holds(unknown.output, {"cuda", "time", "unknown"}));
  const auto tight = here.call(
      {"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200", "run.memory_limit=1MiB"});
  CHECK(tight.exit_code == 3);
  CHECK(holds(tight.output, {"does NOT fit"}));

  const auto wrong = here.call({"plan", "recipe.yaml", "--device", "cpu", "--profile", "h200"});
  CHECK(wrong.exit_code == 2);
  CHECK(holds(wrong.output, {"times of a cuda", "run.device"}));
  const auto nobody = here.call({"plan", "recipe.yaml", "--profile", "h2000"});
  CHECK(nobody.exit_code == 2);
  CHECK(holds(nobody.output, {"h2000", "did you mean `h200`?"}));
  CHECK(here.call({"bench", "recipe.yaml", "run.device=cuda"}).exit_code == 1);
}

// The fullest of 16,384 ranks has 8 of 126 blocks, an eighth of each, in the middle of the
// pipeline.
TEST_CASE("a plan of 405 billion parameters on 16,384 GPUs has the bytes of arithmetic by hand") {
  const Workspace here(kTinyRecipe);
  const auto plan =
      here.call({"plan", "llama3-405b", "--ranks", "16384", "--profile", "h100", "--json"});
  REQUIRE(plan.exit_code == 3);  // activations do not fit
  const auto json = nlohmann::json::parse(plan.output.substr(plan.output.find('{')));
  constexpr std::int64_t kHidden = 16384, kInner = 53248, kKv = 1024, kVocab = 128256;
  constexpr std::int64_t kBlock =
      (2 * kHidden * kHidden + 2 * kHidden * kKv) / 8 + 3 * kHidden * kInner / 8 + 2 * kHidden;
  constexpr std::int64_t kElements = 8 * kBlock;
  constexpr std::int64_t kRopeTables = 2 * 8192 * 64 * 4;
  const auto& held = json.at("held_bytes");
  CHECK(held.at("params") == 2 * kElements + kRopeTables);
  CHECK(held.at("grads") == 4 * kElements);
  CHECK(json.at("parameters") ==
        126 * (8 * (kBlock - 2 * kHidden) + 2 * kHidden) + 2 * kVocab * kHidden + kHidden);
  CHECK(json.at("pipeline").at("ranks").size() == 16);
  CHECK(json.at("rank") == json.at("ranks").at("planned")[0].at("rank"));
  CHECK(holds(
      here.call({"plan", "qwen3-235b-a22b", "--ranks", "1024", "--profile", "h100"}).output,
      {"235.1B", "1024 = dp 128 x pp 8, ep 8", "experts x8, node", "machines of 8 ranks",
       "assumed: experts get as many rows each",
       "assumed: routers send a rank's experts at most 1.5 times", "tp, sp and ep wait at once"}));
}

}  // namespace llmtrain
