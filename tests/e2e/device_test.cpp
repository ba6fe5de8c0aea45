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

/// A variable of the environment, for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

/// The plugin that the executable finds.
struct Plugin : Variable {
  explicit Plugin(const char* file) : Variable("LLMTRAIN_CUDA_PLUGIN", file) {}
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

TEST_CASE("a run on an emulated GPU says who computes attention, and resumes with cuDNN's" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> bf16 = {"run.device=cuda", "precision.compute=bf16",
                                         "data.packing.cross_document_attention=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), bf16.begin(), bf16.end());
    return more;
  };
  const Workspace whole(kTinyRecipe), cut(kTinyRecipe), own(kTinyRecipe);
  const auto run = whole.run(bf16);
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output,
              {"attention: cuDNN 9.19.0 (forward, backward)", "6 steps took memory as planned"}));
  const auto stopped = cut.run(bf16, {.signal = SIGTERM, .signal_after = "\n   2/6 "});
  CHECK(stopped.exit_code == 75);
  run_well(cut, bf16);
  CHECK(fingerprint(cut.path, 6) == fingerprint(whole.path, 6));

  const auto without = own.run(with({"run.attention=own"}));
  CHECK(holds(without.output, {"attention: our kernels for tensor cores (forward, backward)",
                               "6 steps took memory as planned"}));
  const Workspace documents(kTinyRecipe), fp32(kTinyRecipe);
  CHECK(holds(
      documents.run({"run.device=cuda", "precision.compute=bf16", "run.attention=cudnn"}).output,
      {"attention: cuDNN 9.19.0 (forward, backward)", "6 steps took memory as planned"}));
  CHECK(holds(fp32.run({"run.device=cuda"}).output,
              {"attention: our plain kernels (forward, backward; no bf16)"}));
  CHECK(holds(own.call({"doctor", "--quick", "--threads", "1", "--output", "p.json"}).output,
              {"cuDNN", "9.19.0"}));
}

TEST_CASE("cuDNN that is wanted and cannot be had is an error with the reason" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> wanted = {"run.device=cuda", "precision.compute=bf16",
                                           "data.packing.cross_document_attention=true",
                                           "run.attention=cudnn"};
  const Workspace here(kTinyRecipe);
  const auto cpu = here.run({"run.device=cpu", "run.attention=cudnn"});
  CHECK(cpu.exit_code == 2);
  CHECK(holds(cpu.output, {"run.attention", "is for a GPU"}));
  const auto fp32 = here.run({"run.device=cuda", "run.attention=cudnn"});
  CHECK(fp32.exit_code == 2);
  CHECK(holds(fp32.output, {"run.attention is cudnn", "no bf16", "run.attention: auto"}));
  {
    const Variable missing("LLMTRAIN_CUDNN", "/nonexistent/libcudnn.so.9");
    const auto run = here.run(wanted);
    CHECK(run.exit_code == 1);
    CHECK(holds(run.output, {"run.attention is cudnn, but /nonexistent/libcudnn.so.9 is not there",
                             "run.attention: auto"}));
    // The plan is the same with and without the library.
    const auto automatic = here.run({wanted[0], wanted[1], wanted[2]});
    CHECK(holds(automatic.output, {"attention: our kernels for tensor cores (forward, backward; "
                                   "/nonexistent/libcudnn.so.9 is not there",
                                   "6 steps took memory as planned"}));
  }
  const Variable old("LLMTRAIN_FAKE_CUDNN", "old");
  CHECK(holds(here.call({"doctor", "--quick", "--threads", "1", "--output", "p.json"}).output,
              {"cuDNN", "9.10.0 is used from 9.18.0 on"}));
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
