#pragma once
/// The plan of a recipe with its times, if this machine was measured.

#include <filesystem>
#include <optional>
#include <string>

#include "lib/engine/geometry.hpp"
#include "lib/plan/plan_text.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

struct RunPlan {
  plan::Plan plan;
  /// All ranks of the pipeline that the planned one belongs to, if there is one.
  std::optional<plan::PipelinePlan> pipeline;
  /// What all ranks of the job need, where the planned one is that which needs most.
  std::optional<plan::RoleSurvey> ranks;
  std::optional<plan::PlannedTime> time;
  /// Bytes that the arena may have; nothing for a GPU that is neither here nor in a profile.
  std::optional<std::uint64_t> limit_bytes;

  const plan::PipelinePlan* pipeline_plan() const { return pipeline ? &*pipeline : nullptr; }
  /// As gpu_collectives_of().
  std::string_view gpu_collectives;
  /// As local_checkpoints_of().
  std::uint64_t local_checkpoints = 0;
  /// As save_share_of().
  std::optional<double> save_share;
  /// As Recipe::budgeted_recompute().
  std::optional<plan::BudgetedRecompute> budgeted;

  plan::PlanContext context() const {
    return {.time = time,
            .limit_bytes = limit_bytes,
            .pipeline = pipeline_plan(),
            .ranks = ranks ? &*ranks : nullptr,
            .gpu_collectives = gpu_collectives,
            .local_checkpoints = local_checkpoints,
            .save_share = save_share,
            .budgeted = budgeted ? &*budgeted : nullptr};
  }
  std::uint64_t extent_bytes() const {
    return pipeline ? pipeline->extent_bytes() : plan.extent_bytes();
  }
  bool fits() const { return !limit_bytes || extent_bytes() <= *limit_bytes; }

  /// Fraction of the measured peak at this speed; nothing without a peak.
  std::optional<double> mfu(double tokens_per_second) const;
  /// What it is a fraction of, in words; empty without a peak.
  std::string mfu_formula() const;
};

/// parallelism.gpu_collectives of several ranks on GPUs; empty elsewhere.
std::string_view gpu_collectives_of(const Recipe& recipe, const engine::Target& target);

/// Checkpoints in checkpoint.local.directory at a time, one being written among them; 0 without it.
std::uint64_t local_checkpoints_of(const Recipe& recipe);

/// checkpoint.async_share of saves beside the run; empty where there are none.
std::optional<double> save_share_of(const Recipe& recipe);

/// Plans this rank on the meta device. Times come from `profile` (what `doctor` wrote, a data sheet
/// *.yaml, or the name of one in plan::hardware_sheets), whose faults are errors, or else from the
/// default profile: without one there are none, and one that does not suit is a warning.
RunPlan plan_run(const Recipe& recipe, const engine::BatchGeometry& geometry,
                 const std::optional<std::filesystem::path>& profile);

/// The same of the rank that needs most memory of all that the job has.
RunPlan plan_job(const Recipe& recipe, const engine::BatchGeometry& geometry,
                 const std::optional<std::filesystem::path>& profile);

/// Scales the times to the multiply-add rate that this machine has now (plan::at_rate).
void measure_speed_now(RunPlan& planned);

/// As plan_run with the default profile, and one line about it in the log. DoesNotFitError, with
/// the cheapest remedies, when this machine's memory, or the disk of `directory`, cannot hold the
/// run; StorageError where there is too little disk for a run that has checkpoints.
RunPlan plan_that_fits(const Recipe& recipe, const engine::BatchGeometry& geometry,
                       const std::filesystem::path& directory);

/// ", 3.2 s per step, 53m 20s for all" as the end of the line about the plan; empty without times.
std::string to_line(const std::optional<plan::PlannedTime>& time);

}  // namespace llmtrain::train
