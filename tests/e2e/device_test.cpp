// run.device: what a run, a plan and doctor say where there is no GPU, and what they do on one.
#include <cmath>
#include <csignal>
#include <cstdlib>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/train/metrics.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

/// The plugin that the executable finds.
class Plugin {
 public:
  explicit Plugin(const char* file) { ::setenv("LLMTRAIN_CUDA_PLUGIN", file, 1); }
  ~Plugin() { ::unsetenv("LLMTRAIN_CUDA_PLUGIN"); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
};

}  // namespace

TEST_CASE("without a plugin a GPU is planned for, and a run on it is refused with the reason") {
  const Workspace here(kTinyRecipe);
  const Plugin none("/nonexistent/plugin.so");
  const auto run = here.run({"run.device=cuda"});
  CHECK(run.exit_code == 1);
  CHECK(holds(run.output, {"error: run.device is cuda", "/nonexistent/plugin.so", "run.device: cpu",
                           "--profile h200"}));

  const auto plan = here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200"});
  CHECK(plan.exit_code == 0);
  CHECK(holds(plan.output, {"cuda", "of 139.40 GiB", "not measured", "dense peak", "MFU"}));
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
  CHECK(holds(nobody.output, {"h2000", "a100, h100, h200, b200"}));
  CHECK(here.call({"bench", "recipe.yaml", "run.device=cuda"}).exit_code == 1);
}

TEST_CASE("a run on an emulated GPU trains, evaluates, saves and resumes like one on the CPU" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const auto losses = [](const Workspace& here, const std::string& key) {
    std::vector<double> values;
    for (const train::StepRecord& record : here.metrics()) {
      if (const auto value = record.number(key)) values.push_back(*value);
    }
    return values;
  };
  const auto compare = [&](const Workspace& a, const Workspace& b, double tolerance) {
    for (const char* key : {"train/loss", "eval/loss", "train/grad_norm"}) {
      CAPTURE(key);
      const std::vector<double> x = losses(a, key), y = losses(b, key);
      REQUIRE(x.size() == y.size());
      REQUIRE(!x.empty());
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= tolerance);
    }
  };
  const Workspace cpu(kTinyRecipe), gpu(kTinyRecipe), cut(kTinyRecipe);
  run_well(cpu, {"run.device=cpu"});
  const auto run = gpu.run({"run.device=cuda"});
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output, {"device: emulated GPU", "6 steps took memory as planned"}));
  compare(cpu, gpu, 1e-4);

  const auto stopped =
      cut.run({"run.device=cuda"}, {.signal = SIGTERM, .signal_after = "\n   2/6 "});
  INFO(stopped.output);
  CHECK(stopped.exit_code == 75);
  run_well(cut, {"run.device=cuda"});
  CHECK(fingerprint(cut.path, 6) == fingerprint(gpu.path, 6));

  // Evaluations wait for the steps under way, as saves do.
  const Workspace unsaved(kTinyRecipe);
  run_well(unsaved, {"run.device=cuda", "checkpoint.interval=1000"});
  compare(gpu, unsaved, 0);

  // What a GPU saved goes on on the CPU.
  const auto other = cut.run({"run.device=cpu", "training.max_steps=8"});
  CHECK(other.exit_code == 0);
  CHECK(holds(other.output, {"resumed from step 6"}));
  const auto bench = gpu.call({"bench", "recipe.yaml", "run.device=cuda", "--steps", "1"});
  CHECK(bench.exit_code == 0);
  CHECK(holds(bench.output, {"attention_forward", "clocked one by one"}));
  CHECK(holds(gpu.call({"doctor", "--quick", "--threads", "1", "--output", "p.json"}).output,
              {"emulated GPU, sm_90"}));
}

TEST_CASE("a file that is no plugin, or another build's, is named") {
  const Workspace here(kTinyRecipe);
  here.write("plugin.so", "no library");
  const std::string file = (here.path / "plugin.so").string();
  const Plugin plugin(file.c_str());
  const auto run = here.run({"run.device=cuda"});
  CHECK(run.exit_code == 1);
  CHECK(holds(run.output, {"plugin.so"}));
}

}  // namespace llmtrain
