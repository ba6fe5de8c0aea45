#include "lib/train/planned_time.hpp"

#include "lib/base/log.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::train {

namespace {

plan::RunShape run_shape(const Recipe& recipe, const engine::BatchGeometry& geometry) {
  plan::RunShape run{.threads = recipe.threads(), .compute = recipe.precision.compute()};
  if (const auto steps = recipe.training.max_steps()) {
    run.steps = static_cast<std::int64_t>(steps->value);
  } else if (const auto tokens = recipe.training.max_tokens()) {
    const auto length = static_cast<std::uint64_t>(geometry.seq_len());
    run.steps = geometry.steps_for_samples((tokens->value + length - 1) / length);
  }
  run.tokens = geometry.tokens_before(run.steps + 1);
  return run;
}

std::optional<plan::PlannedTime> default_time(const plan::Plan& plan, const plan::RunShape& run) {
  try {
    const auto profile = plan::load_default_profile();
    if (!profile) return std::nullopt;
    return plan::planned_time(plan, *profile, run, plan::default_profile_path().string());
  } catch (const Error& error) {
    log::warning("no times in the plan: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<double> RunPlan::mfu(double tokens_per_second) const {
  if (!time || time->step.peak_flops == 0) return std::nullopt;
  return plan.model_flops_per_token * tokens_per_second / time->step.peak_flops;
}

std::string RunPlan::mfu_formula() const {
  if (!time || time->step.peak_flops == 0) return "";
  return plan::mfu_formula(plan, {time->step.peak_flops, time->run.compute, time->run.threads});
}

RunPlan plan_run(const Recipe& recipe, const engine::BatchGeometry& geometry,
                 const std::optional<std::filesystem::path>& profile) {
  RunPlan planned{
      plan::make_plan(recipe.engine_options(), geometry.global_batch_size(), recipe.threads()),
      std::nullopt};
  const plan::RunShape run = run_shape(recipe, geometry);
  planned.time = profile ? plan::planned_time(planned.plan, plan::load_profile(*profile), run,
                                              profile->string())
                         : default_time(planned.plan, run);
  return planned;
}

std::string to_line(const std::optional<plan::PlannedTime>& time) {
  if (!time) return "";
  std::string line = fmt::format(", {} per step", format_duration(time->step.seconds));
  if (time->run_seconds > 0) line += fmt::format(", {} in all", format_duration(time->run_seconds));
  return line;
}

}  // namespace llmtrain::train
