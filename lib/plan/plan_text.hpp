#pragma once
/// The plan for people and for programs.

#include <optional>
#include <string>

#include "lib/plan/predict.hpp"
#include "lib/plan/recompute_budget.hpp"
#include "lib/plan/roles.hpp"

namespace llmtrain::plan {

/// What is known beside the plan itself.
struct PlanContext {
  std::optional<PlannedTime> time;
  /// Bytes that the arena may have.
  std::optional<std::uint64_t> limit_bytes;
  /// All ranks of the planned one's pipeline; null without one.
  const PipelinePlan* pipeline = nullptr;
  /// What all ranks need, of which the planned one needs most; null where one rank is of interest.
  const RoleSurvey* ranks = nullptr;
  /// How ranks on GPUs exchange tensors: "auto", "nccl", "host"; empty elsewhere.
  std::string_view gpu_collectives = {};
  /// Checkpoints that lie on fast storage at a time, one being written among them; 0: none do.
  std::uint64_t local_checkpoints = 0;
  /// Of the time, in which each rank writes a save beside the run; empty: there are none.
  std::optional<double> save_share = {};
  /// Of a budget for activations; null without one.
  const BudgetedRecompute* budgeted = nullptr;
};

/// Without times, says how to get them; with a limit, whether the plan fits.
std::string to_text(const Plan& plan, const PlanContext& context);
/// Bytes per category, FLOPs, launches, and times if given; one JSON object.
std::string to_json(const Plan& plan, const PlanContext& context);

}  // namespace llmtrain::plan
