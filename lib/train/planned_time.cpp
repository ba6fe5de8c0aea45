#include "lib/train/planned_time.hpp"

#include "lib/base/ending.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/fma_peak.hpp"
#include "lib/plan/nominal_profile.hpp"
#include "lib/recipe/suggest.hpp"
#include "lib/train/device.hpp"
#include "lib/train/disk_room.hpp"
#include "lib/train/exported_model.hpp"

namespace llmtrain::train {

namespace {

plan::RunShape run_shape(const Recipe& recipe, const engine::BatchGeometry& geometry) {
  const DeviceKind device = device_of(recipe);
  plan::RunShape run{.device = device,
                     .threads = device == DeviceKind::cpu ? recipe.threads() : 0,
                     .compute = recipe.precision.compute()};
  run.steps = geometry.total_steps(recipe.training).value_or(0);
  run.tokens = geometry.tokens_before(run.steps + 1);
  if (const auto max_time = recipe.training.max_time()) run.max_seconds = max_time->seconds;
  return run;
}

std::optional<plan::PlannedTime> default_time(const RunPlan& planned, const plan::RunShape& run) {
  try {
    const int ranks = planned.plan.mesh.world_size();
    const auto profile = plan::load_default_profile(ranks);
    if (!profile || profile->device != run.device) return std::nullopt;
    return plan::planned_time(planned.plan, *profile, run,
                              plan::default_profile_path(ranks).string(), planned.pipeline_plan());
  } catch (const std::exception& error) {  // nobody has asked for the profile
    log::warning("no times in the plan: {}", ending_of(error).text);
    return std::nullopt;
  }
}

}  // namespace

std::optional<double> RunPlan::mfu(double tokens_per_second) const {
  if (!time || time->step.peak_flops == 0) return std::nullopt;
  return plan.model_flops_per_token * tokens_per_second /
         (time->step.peak_flops * plan.mesh.world_size());
}

std::string RunPlan::mfu_formula() const {
  if (!time || time->step.peak_flops == 0) return "";
  return plan::mfu_formula(plan, {time->step.peak_flops, time->run.compute, time->run.threads});
}

namespace {

/// A data sheet (a file *.yaml, or the name of one that is known), or what `doctor` has measured.
plan::HardwareProfile profile_of(const std::filesystem::path& named) {
  const std::filesystem::path kind = named.extension();
  if (kind == ".yaml" || kind == ".yml") return plan::nominal_profile(plan::load_sheet(named));
  if (std::filesystem::exists(named)) return plan::load_profile(named);
  auto nominal = plan::nominal_profile(named.string());
  const auto known = plan::builtin_sheet_names();
  const std::vector<std::string> names(known.begin(), known.end());
  require<RecipeError>(nominal.has_value(),
                       "--profile {}: no such file, and no hardware that is known by name; {}",
                       named.string(), recipe::suggestion(named.string(), names));
  return *std::move(nominal);
}

}  // namespace

namespace {

/// With a data sheet, of a device as it is there.
engine::Target rank_of(const Recipe& recipe,
                       const std::optional<std::filesystem::path>& profile = std::nullopt) {
  check_device_trains(recipe);
  engine::Target target = target_of(recipe);
  if (profile && target.device == DeviceKind::cuda && recipe.precision.quantization()) {
    target.multiplies_codes = profile_of(*profile).peak_fp8_flops > 0;
  }
  target.mesh = recipe.mesh_shape();
  target.rank = recipe.job.rank;
  return target;
}

/// Of the target's rank, whose plan there may be already.
RunPlan plan_ranks(const engine::EngineOptions& options, std::int64_t samples_per_step,
                   const engine::Target& target, std::optional<plan::Plan> known = {}) {
  if (target.mesh[Axis::pp] == 1) {
    return {.plan = known ? *std::move(known) : plan::make_plan(options, samples_per_step, target)};
  }
  RunPlan planned{.plan = {}, .pipeline = plan::plan_pipeline(options, samples_per_step, target)};
  for (const plan::Plan& plan : planned.pipeline->ranks) {
    if (plan.rank == target.rank) planned.plan = plan;
  }
  return planned;
}

}  // namespace

std::string_view gpu_collectives_of(const Recipe& recipe, const engine::Target& target) {
  const bool exchanges = target.device == DeviceKind::cuda && target.mesh.world_size() > 1;
  return exchanges ? to_string(recipe.parallelism.gpu_collectives()) : "";
}

std::uint64_t local_checkpoints_of(const Recipe& recipe) {
  const auto& local = recipe.checkpoint.local;
  return local.directory() ? local.keep_latest() + 1 : 0;
}

std::optional<double> save_share_of(const Recipe& recipe) {
  if (!recipe.checkpoint.async()) return std::nullopt;
  return recipe.checkpoint.async_share();
}

namespace {

/// Beside the memory.
RunPlan with_times(RunPlan planned, const Recipe& recipe, const engine::BatchGeometry& geometry,
                   const std::optional<std::filesystem::path>& profile) {
  planned.gpu_collectives = gpu_collectives_of(recipe, rank_of(recipe));
  planned.local_checkpoints = local_checkpoints_of(recipe);
  planned.save_share = save_share_of(recipe);
  if (const auto* budgeted = recipe.budgeted_recompute()) planned.budgeted = *budgeted;
  if (recipe.checkpoint.export_hf()) {
    planned.plan.export_bytes = exported_bytes(recipe.model.spec());
  }
  const plan::RunShape run = run_shape(recipe, geometry);
  if (!profile) {
    planned.time = default_time(planned, run);
    planned.limit_bytes = memory_limit(recipe);
    return planned;
  }
  const plan::HardwareProfile named = profile_of(*profile);
  planned.time = plan::planned_time(planned.plan, named, run,
                                    named.network ? named.machine.host : profile->string(),
                                    planned.pipeline_plan());
  planned.limit_bytes = memory_limit(recipe, &named);
  return planned;
}

}  // namespace

RunPlan plan_run(const Recipe& recipe, const engine::BatchGeometry& geometry,
                 const std::optional<std::filesystem::path>& profile) {
  return with_times(
      plan_ranks(recipe.engine_options(), geometry.global_batch_size(), rank_of(recipe, profile)),
      recipe, geometry, profile);
}

RunPlan plan_job(const Recipe& recipe, const engine::BatchGeometry& geometry,
                 const std::optional<std::filesystem::path>& profile) {
  engine::Target target = rank_of(recipe, profile);
  if (target.mesh.world_size() == 1) return plan_run(recipe, geometry, profile);
  const engine::EngineOptions options = recipe.engine_options();
  plan::Plan fullest;
  plan::RoleSurvey ranks =
      plan::survey_roles(options, geometry.global_batch_size(), target, fullest);
  target.rank = fullest.rank;
  RunPlan planned = plan_ranks(options, geometry.global_batch_size(), target, std::move(fullest));
  planned.ranks = std::move(ranks);
  return with_times(std::move(planned), recipe, geometry, profile);
}

void measure_speed_now(RunPlan& planned) {
  require<RecipeError>(!planned.time || planned.time->run.device == DeviceKind::cpu,
                       "--now measures this machine's CPU, but the plan is for a GPU");
  if (!planned.time || planned.time->step.peak_flops == 0) return;
  constexpr double kSeconds = 1;
  const plan::RunShape& run = planned.time->run;
  const plan::FmaRate rate = plan::measure_fma_rate(run.compute, run.threads, kSeconds);
  planned.time = plan::at_rate(*planned.time, rate);
}

namespace {

/// The remedy that recomputes least: a budget that fits, or all blocks.
std::string cheaper_activations(const plan::Plan& plan, std::uint64_t available) {
  const std::uint64_t excess = plan.extent_bytes() - available;
  const std::uint64_t now =
      plan.step.peak.per_category[static_cast<std::size_t>(Category::activations)];
  constexpr std::uint64_t kMiB = 1 << 20;
  const std::uint64_t budget = now > excess ? (now - excess) / kMiB : 0;
  if (budget == 0) return "set activation_checkpoint.mode: full";
  return fmt::format("set activation_checkpoint: {{mode: budget, budget: {}MiB}}", budget);
}

}  // namespace

RunPlan plan_that_fits(const Recipe& recipe, const engine::BatchGeometry& geometry,
                       const std::filesystem::path& directory) {
  RunPlan planned = plan_run(recipe, geometry, std::nullopt);
  const plan::Plan& plan = planned.plan;
  if (!planned.limit_bytes) {  // only then: whoever asks for the problem loads the plugin
    fail<DeviceError>(
        "run.device is cuda, but there is no GPU to use ({}); run.device: cpu trains "
        "without one, and `llmtrain plan --profile h200` plans for one",
        gpu_problem());
  }
  const std::uint64_t available = *planned.limit_bytes;
  log::info("plan: {} parameters, peak {} of {} memory, checkpoint {}{}",
            format_count(static_cast<double>(plan.parameters)), format_bytes(plan.extent_bytes()),
            format_bytes(available), format_bytes(plan.durable_bytes()), to_line(planned.time));
  if (planned.budgeted) {
    log::info("activations computed again for activation_checkpoint.budget: {}",
              to_string(*planned.budgeted));
  }
  if (plan.extent_bytes() > available) {
    fail<DoesNotFitError>(
        "the plan needs {} of memory ({} at \"{}\"), but there are {}; lower "
        "training.micro_batch_size (now {}), {}, or precision.compute: bf16",
        format_bytes(plan.extent_bytes()), format_bytes(plan.step.peak.total_bytes),
        plan.step.peak.tag, format_bytes(available), geometry.micro_batch_size(),
        cheaper_activations(plan, available));
  }
  check_disk_room(plan, recipe.checkpoint, geometry.total_steps(recipe.training), directory);
  check_offload_room(plan, recipe.offload.directory(directory));
  return planned;
}

std::string to_line(const std::optional<plan::PlannedTime>& time) {
  if (!time) return "";
  std::string line = fmt::format(", {} per step", format_duration(time->step.seconds));
  if (time->run_seconds > 0) {
    line += fmt::format(", {}{} in all", time->run.steps == 0 ? "at most " : "",
                        format_duration(time->run_seconds));
  }
  return line;
}

}  // namespace llmtrain::train
