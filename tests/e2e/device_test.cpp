// run.device: what a run, a plan and doctor say where there is no GPU, and what they do on one.
#include <cstdlib>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

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
  CHECK(holds(run.output, {"error: run.device is cuda", "/nonexistent/plugin.so",
                           "run.device: cpu", "--profile h200"}));

  const auto plan = here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200"});
  CHECK(plan.exit_code == 0);
  CHECK(holds(plan.output, {"cuda", "of 139.40 GiB", "not measured", "dense peak", "MFU"}));
  const auto unknown = here.call({"plan", "recipe.yaml", "--device", "cuda"});
  CHECK(unknown.exit_code == 0);
  CHECK(holds(unknown.output, {"cuda", "time", "unknown"}));
  const auto tight = here.call({"plan", "recipe.yaml", "--device", "cuda", "--profile", "h200",
                                "run.memory_limit=1MiB"});
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
