#include "lib/plan/predict.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::plan {

double predict(const HardwareProfile& profile, const LaunchGroup& group) {
  const KernelKey key = key_of(group.name, group.dtype, group.sizes);
  const auto model = profile.kernels.find(key);
  require<RecipeError>(model != profile.kernels.end(),
                       "the hardware profile has no times for {}; measure them with `llmtrain "
                       "doctor`",
                       to_string(key));
  return model->second.predict(point_of(group.name, group.sizes, group.cost));
}

std::string table_row(std::string_view name, DType dtype,
                      const std::array<std::int64_t, 4>& sizes) {
  static constexpr std::array<std::string_view, 3> kForms = {" forward", " input grad",
                                                             " weight grad"};
  if (!is_product(name)) return fmt::format("{} {}", name, to_string(dtype));
  const bool known = sizes[3] >= 0 && sizes[3] < std::ssize(kForms);
  return fmt::format("matmul{} {}", known ? kForms[static_cast<std::size_t>(sizes[3])] : "",
                     name.ends_with("tf32") ? "tf32" : to_string(dtype));
}

StepPrediction predict_step(const Plan& plan, const HardwareProfile& profile, DType compute) {
  StepPrediction step;
  std::map<std::string, KernelTime> by_name;
  for (const LaunchGroup& group : plan.step.launches) {
    const double seconds = predict(profile, group) * static_cast<double>(group.count);
    KernelTime& time = by_name[table_row(group.name, group.dtype, group.sizes)];
    time.count += group.count;
    time.seconds += seconds;
    time.dtype = group.dtype;
    time.cost += static_cast<double>(group.count) * group.cost;
    step.seconds += seconds;
  }
  for (auto& [name, time] : by_name) {
    time.name = name;
    step.kernels.push_back(std::move(time));
  }
  std::stable_sort(step.kernels.begin(), step.kernels.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  require(step.seconds > 0, "a step without launches");
  step.tokens_per_second = static_cast<double>(plan.tokens_per_step) / step.seconds;
  step.peak_flops = profile.peak_flops(compute, plan.tf32);
  if (step.peak_flops > 0) {
    step.mfu = plan.model_flops_per_token * step.tokens_per_second /
               (step.peak_flops * plan.mesh.world_size());
  }
  return step;
}

namespace {

double seconds_of_run(const RunShape& run, double tokens_per_second) {
  // By tokens, not steps: a ramp begins with smaller ones.
  const double steps = static_cast<double>(run.tokens) / tokens_per_second;
  if (run.max_seconds == 0) return steps;
  return run.steps == 0 ? run.max_seconds : std::min(steps, run.max_seconds);
}

}  // namespace

PlannedTime planned_time(const Plan& plan, const HardwareProfile& profile, const RunShape& run,
                         std::string source) {
  require<RecipeError>(profile.device == run.device,
                       "{} has the times of a {}, but the run is for a {}; choose another profile, "
                       "or set run.device",
                       source, to_string(profile.device), to_string(run.device));
  require<RecipeError>(profile.threads == run.threads,
                       "{} was measured with {} threads, but the run has {}; measure again with "
                       "`llmtrain doctor --threads {}`, or set run.threads",
                       source, profile.threads, run.threads, run.threads);
  PlannedTime time{
      .step = predict_step(plan, profile, run.compute), .run = run, .source = std::move(source)};
  time.run_seconds = seconds_of_run(run, time.step.tokens_per_second);
  return time;
}

PlannedTime at_rate(PlannedTime time, const FmaRate& now) {
  if (time.step.peak_flops == 0 || now.mean == 0) return time;
  const double longer = time.step.peak_flops / now.mean;
  time.step.seconds *= longer;
  time.step.tokens_per_second /= longer;
  time.step.mfu /= longer;
  for (KernelTime& kernel : time.step.kernels) kernel.seconds *= longer;
  time.run_seconds = seconds_of_run(time.run, time.step.tokens_per_second);
  return time;
}

std::string mfu_formula(const Plan& plan, const PeakFlops& peak) {
  const std::string of =
      peak.threads > 0
          ? fmt::format("FMA peak of {}, {} threads", to_string(peak.compute), peak.threads)
          : fmt::format("dense peak of {}", plan.tf32 ? "tf32" : to_string(peak.compute));
  return fmt::format("{} model FLOP per token x tokens/s / {:.0f} GFLOP/s ({})",
                     format_count(plan.model_flops_per_token), 1e-9 * peak.flops, of);
}

}  // namespace llmtrain::plan
