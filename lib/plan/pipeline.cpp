#include "lib/plan/pipeline.hpp"

#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/engine/stages.hpp"

namespace llmtrain::plan {

std::uint64_t PipelinePlan::extent_bytes() const {
  std::uint64_t most = 0;
  for (const Plan& plan : ranks) most = std::max(most, plan.extent_bytes());
  return most;
}

PipelinePlan plan_pipeline(const engine::EngineOptions& options, std::int64_t samples_per_step,
                           const engine::Target& target) {
  require(target.mesh[Axis::pp] > 1, "a pipeline of one rank");
  constexpr std::array kAxis{Axis::pp};
  PipelinePlan pipeline{.schedule_name = options.pipeline.schedule, .schedule = {}, .ranks = {}};
  for (const int rank : group_of(target.mesh, target.rank, kAxis)) {
    engine::Target of_rank = target;
    of_rank.rank = rank;
    const Plan* first = pipeline.ranks.empty() ? nullptr : &pipeline.ranks.front();
    pipeline.ranks.push_back(make_plan(options, samples_per_step, of_rank, first));
  }
  const std::int64_t samples_per_rank = samples_per_step / target.mesh[Axis::dp];
  pipeline.schedule =
      parallel::find_schedule(options.pipeline.schedule)
          .make(
              {.num_ranks = target.mesh[Axis::pp],
               .num_stages = target.mesh[Axis::pp] * options.pipeline.stages_per_rank,
               .num_micro_batches = static_cast<int>(samples_per_rank / options.micro_batch_size)});
  return pipeline;
}

std::uint64_t message_bytes(const PassPlan& step) {
  std::uint64_t bytes = 0;
  for (const CollectiveGroup& group : step.collectives) {
    const bool message = group.kind == Collective::send || group.kind == Collective::recv;
    if (message) bytes = std::max(bytes, group.bytes);
  }
  return bytes;
}

namespace {

struct Mean {
  double sum = 0;
  int count = 0;
  double value() const { return count == 0 ? 0 : sum / count; }
};

// A stage whose schedule has whole backwards has no times of their parts, and needs none.
parallel::ActionCosts costs_of(const std::array<Mean, 4>& of_kind) {
  const auto mean = [&](parallel::ActionKind kind) {
    return of_kind[static_cast<std::size_t>(kind)].value();
  };
  parallel::ActionCosts costs{.forward = mean(parallel::ActionKind::forward),
                              .input_grad = mean(parallel::ActionKind::input_grad),
                              .weight_grad = mean(parallel::ActionKind::weight_grad)};
  if (of_kind[static_cast<std::size_t>(parallel::ActionKind::input_grad)].count == 0) {
    costs.input_grad = costs.weight_grad = mean(parallel::ActionKind::backward) / 2;
  }
  return costs;
}

}  // namespace

parallel::Simulation simulate(const PipelinePlan& pipeline, const std::vector<ActionSeconds>& ranks,
                              const std::function<parallel::Link(int from, int to)>& link,
                              bool overlap) {
  const auto num_stages = static_cast<std::size_t>(pipeline.schedule.shape.num_stages);
  std::vector<std::array<Mean, 4>> means(num_stages);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& actions = pipeline.ranks[r].step.actions;
    require(actions.size() == ranks[r].size(), "times of {} actions, not {}", ranks[r].size(),
            actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const parallel::Action& action = actions[i].action;
      Mean& mean =
          means[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.kind)];
      mean.sum += ranks[r][i];
      ++mean.count;
    }
  }
  parallel::SimulationInput input{.stages = {}, .link = link, .overlap_messages = overlap};
  for (const auto& of_kind : means) {
    input.stages.push_back(
        {.seconds = costs_of(of_kind), .output_bytes = message_bytes(pipeline.ranks.front().step)});
  }
  return parallel::simulate(pipeline.schedule, input);
}

}  // namespace llmtrain::plan
