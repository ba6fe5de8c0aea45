// metrics.diagnostics_interval with run.device: cuda, and what a run leaves of it.
#include <cmath>
#include <csignal>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/train/metrics.hpp"
#include "tests/e2e/emulated_gpu.hpp"

namespace llmtrain {

namespace {

const std::vector<std::string> kEveryThird = {kLongEnough, "metrics.diagnostics_interval=3",
                                              "metrics.interval=100"};

std::vector<train::StepRecord> diagnosed(const Workspace& here) {
  std::vector<train::StepRecord> records = train::read_metrics(here.path / "run/metrics.jsonl");
  std::erase_if(records, [](const auto& record) { return record.find("gradient/rms") == nullptr; });
  return records;
}

std::vector<std::string> on(const std::string& device) {
  std::vector<std::string> overrides = kEveryThird;
  overrides.push_back("run.device=" + device);
  return overrides;
}

}  // namespace

TEST_CASE("diagnostics on an emulated GPU are those of the CPU, and change no bit" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace cpu(tiny_gpu_recipe()), gpu(tiny_gpu_recipe()), plain(tiny_gpu_recipe()),
      cut(tiny_gpu_recipe());
  run_well(cpu, on("cpu"));
  const auto run = gpu.run(on("cuda"));
  INFO(run.output);
  REQUIRE(run.exit_code == 0);
  CHECK(holds(run.output, {kLongAsPlanned}));
  run_well(plain, {kLongEnough, "run.device=cuda"});
  // The hash of the only file of tensors.
  const auto tensors = [](const Workspace& here) {
    const std::string all = fingerprint(here.path, kLongSteps);
    return all.substr(0, all.find('\n'));
  };
  CHECK(tensors(gpu) == tensors(plain));

  const auto expected = diagnosed(cpu), found = diagnosed(gpu);
  REQUIRE(expected.size() == kLongSteps / 3);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].step == 3 * static_cast<std::int64_t>(i + 1));
    for (const char* key : {"gradient/rms", "gradient/amax", "weight/rms", "activation/rms",
                            "activation/largest_kurtosis", "update/ratio"}) {
      CAPTURE(key);
      const double one = expected[i].number(key).value(), other = found[i].number(key).value();
      CHECK(one > 0);
      CHECK(std::abs(other - one) <= 1e-3 * one);
    }
  }

  // A run that was stopped has each line once, and the same.
  const auto stopped = cut.run(on("cuda"), {.signal = SIGTERM, .signal_after = kSecondStep});
  CHECK(stopped.exit_code == 75);
  run_well(cut, on("cuda"));
  const auto resumed = diagnosed(cut);
  REQUIRE(resumed.size() == found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(train::reproducible_line(resumed[i]) == train::reproducible_line(found[i]));
  }
  const std::string report = read_file(gpu.path / "run/report.html");
  CHECK(holds(report, {"Tensors of step 12", "model.layers.1.self_attn.q_proj.weight", "moved by",
                       "Noise scale of the gradients"}));
  CHECK_FALSE(holds(read_file(plain.path / "run/report.html"), {"Tensors of step"}));
}

}  // namespace llmtrain
