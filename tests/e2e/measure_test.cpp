// doctor, plan and bench agree about a machine and a recipe.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain {

namespace {

nlohmann::json json_of(const Workspace& here, const std::vector<std::string>& arguments) {
  const test::ProcessResult result = here.call(arguments);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  return nlohmann::json::parse(result.output.substr(result.output.find('{')));
}

}  // namespace

TEST_CASE("bench measures every kernel that plan predicts from the profile of doctor") {
  const Workspace here(kTinyRecipe);
  const auto doctor =
      here.call({"doctor", "--quick", "--threads", "1", "--output", "profile.json"});
  INFO(doctor.output);
  REQUIRE(doctor.exit_code == 0);
  CHECK(holds(doctor.output, {"multiply-add peak", "memory bandwidth", "matmul bf16 variant 2",
                              "GFLOP/s", "of peak", "profile.json"}));

  const auto plan = json_of(here, {"plan", "recipe.yaml", "--profile", "profile.json", "--json"});
  const auto now =
      json_of(here, {"plan", "recipe.yaml", "--profile", "profile.json", "--json", "--now"});
  // A profile of a machine whose peak is a thousand times as high: this one is slower now.
  auto profile = nlohmann::json::parse(read_file(here.path / "profile.json"));
  profile["peak_fp32_flops"] = 1e3 * profile["peak_fp32_flops"].get<double>();
  here.write("dream.json", profile.dump());
  const auto dream =
      json_of(here, {"plan", "recipe.yaml", "--profile", "dream.json", "--json", "--now"});
  const double longer =
      dream["time"]["step_seconds"].get<double>() / plan["time"]["step_seconds"].get<double>();
  CHECK(longer > 100);
  CHECK(now["time"]["step_seconds"] < dream["time"]["step_seconds"]);

  const auto bench = json_of(
      here, {"bench", "recipe.yaml", "--profile", "profile.json", "--steps", "1", "--json"});
  CHECK(bench["tokens_per_step"] == 4 * 16);
  CHECK(bench["predicted_step_seconds"] == plan["time"]["step_seconds"]);
  CHECK(bench["best_step_seconds"] > 0);
  CHECK(bench["best_step_seconds"] <= bench["median_step_seconds"]);
  // The same machine, whatever it did in between: at least the order is right.
  CHECK(bench["step_seconds_at_profile_speed"] > 0);
  const auto dreamed =
      json_of(here, {"bench", "recipe.yaml", "--profile", "dream.json", "--steps", "1", "--json"});
  CHECK(dreamed["step_seconds_at_profile_speed"].get<double>() <
        0.1 * bench["step_seconds_at_profile_speed"].get<double>());
  CHECK(bench["mfu"] > 0);
  CHECK(bench["mfu"] < 1);
  // By hand: two FLOP per weight of a product, half of all pairs in attention; backward costs twice
  // the forward pass.
  const int layer = 4 * 16 * 16 + 3 * 16 * 32;
  const int attention = 2 * 16 * 16;
  CHECK(plan["model_flops_per_token"] == 3 * (2 * (2 * layer + 257 * 16) + 2 * attention));
  const double step_flops = plan["model_flops_per_token"].get<double>() * 4 * 16;
  CHECK(bench["mfu"].get<double>() * bench["peak_flops"].get<double>() ==
        test::relative(step_flops / bench["median_step_seconds"].get<double>()));
  CHECK(bench["lowest_peak_flops"] == bench["peak_flops"]);  // one step
  CHECK(bench["highest_peak_flops"] == bench["peak_flops"]);
  CHECK(bench["kernels"].size() > 10);
  double planned_flops = 0, planned_bytes = 0;  // bytes of the kernels that multiply no matrices
  for (const auto& launch : plan["step"]["launches"]) {
    const double count = launch["count"].get<double>();
    planned_flops += count * launch["flops"].get<double>();
    if (launch["flops"] > 0) continue;
    planned_bytes +=
        count * (launch["bytes_read"].get<double>() + launch["bytes_written"].get<double>());
  }
  CHECK(bench["memory_bytes_per_second"] > 0);
  double seconds = 0, flops = 0, bytes = 0;
  for (const auto& kernel : bench["kernels"]) {
    CAPTURE(kernel["name"]);
    CHECK(kernel["launches"] > 0);
    CHECK(kernel.contains("predicted_seconds"));
    const double kernel_seconds = kernel["seconds"].get<double>();
    seconds += kernel_seconds;
    const bool product = kernel.contains("flops_per_second");
    const double rate = kernel[product ? "flops_per_second" : "bytes_per_second"].get<double>();
    (product ? flops : bytes) += rate * kernel_seconds;
    const char* const peak = product ? "peak_flops" : "memory_bytes_per_second";
    CHECK(kernel["of_peak"].get<double>() * bench[peak].get<double>() == test::relative(rate));
  }
  CHECK(flops == test::relative(planned_flops));
  CHECK(bytes == test::relative(planned_bytes));
  CHECK(seconds > 0);
  CHECK(seconds <= bench["mean_step_seconds"]);

  const auto several = json_of(here, {"bench", "recipe.yaml", "--steps", "6", "--json"});
  CHECK(several["lowest_peak_flops"] < several["peak_flops"]);
  CHECK(several["peak_flops"] < several["highest_peak_flops"]);

  const auto text = here.call({"bench", "recipe.yaml", "--profile", "profile.json"});
  CHECK(holds(text.output, {"matmul forward fp32", "outside of kernels", "median step", "MFU",
                            "GFLOP/s", "GB/s", "of peak", "in pauses of each step ("}));
}

}  // namespace llmtrain
