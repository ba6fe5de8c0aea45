#pragma once
/// All ranks of a pipeline planned together.

#include <functional>
#include <vector>

#include "lib/parallel/simulator.hpp"
#include "lib/plan/plan.hpp"

namespace llmtrain::plan {

struct PipelinePlan {
  std::string schedule_name;
  parallel::Schedule schedule;
  /// In the order of Axis::pp: ranks that differ from the planned one along that axis alone.
  std::vector<Plan> ranks;

  /// Of the rank that needs most.
  std::uint64_t extent_bytes() const;
};

/// make_plan for every rank of the pipeline that the target's rank belongs to. Its layout has one.
PipelinePlan plan_pipeline(const engine::EngineOptions& options, std::int64_t samples_per_step,
                           const engine::Target& target);

/// What F, I and W of a stage cost beside each other by their FLOP, with F = 1: the mean over the
/// stages between the first and the last one of rank 0's pipeline, for one micro-batch, so that all
/// ranks have the same. Of a schedule with I and W apart and such stages.
parallel::ActionCosts flop_costs(engine::EngineOptions options, engine::Target target);

/// Seconds of a rank's actions, as in PassPlan::actions, without their messages.
using ActionSeconds = std::vector<double>;

/// Of each stage's F, I and W, the mean over the micro-batches. `ranks` as in PipelinePlan::ranks.
std::vector<parallel::ActionCosts> stage_seconds(const PipelinePlan& pipeline,
                                                 const std::vector<ActionSeconds>& ranks);

/// Their mean over the stages between the first and the last one; of all where there are none.
parallel::ActionCosts inner_costs(const PipelinePlan& pipeline,
                                  const std::vector<ActionSeconds>& ranks);

/// When the ranks run their actions, which take stage_seconds. Messages go beside the actions, or
/// not (`overlap`).
parallel::Simulation simulate(const PipelinePlan& pipeline, const std::vector<ActionSeconds>& ranks,
                              const std::function<parallel::Link(int from, int to)>& link,
                              bool overlap);

/// Whether it is messages between stages, not around a ring of Axis::sp.
bool is_stage_message(const CollectiveGroup& group);
/// Bytes of a message between stages; 0 where there is none.
std::uint64_t message_bytes(const PassPlan& step);

}  // namespace llmtrain::plan
