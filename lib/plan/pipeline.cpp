#include "lib/plan/pipeline.hpp"

#include <algorithm>
#include <cmath>

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
          .make({.num_ranks = target.mesh[Axis::pp],
                 .num_stages = target.mesh[Axis::pp] * options.pipeline.stages_per_rank,
                 .num_micro_batches = static_cast<int>(samples_per_rank / options.micro_batch_size),
                 .costs = options.pipeline.costs});
  return pipeline;
}

namespace {

/// Of stages between the first one, which embeds, and the last one, whose forward does most of the
/// head's backward, too.
bool is_between(const PipelinePlan& pipeline, int stage) {
  return stage > 0 && stage < pipeline.schedule.shape.num_stages - 1;
}

}  // namespace

parallel::ActionCosts flop_costs(engine::EngineOptions options, engine::Target target) {
  options.pipeline.costs = {};
  options.virtual_workers = 0;  // which would ask for more than the one micro-batch
  target.rank = 0;
  std::array<double, 4> flops{};
  const PipelinePlan pipeline =
      plan_pipeline(options, options.micro_batch_size * target.mesh[Axis::dp], target);
  for (const Plan& plan : pipeline.ranks) {
    for (const ActionEvents& action : plan.step.actions) {
      if (!is_between(pipeline, action.action.stage)) continue;
      double& sum = flops[static_cast<std::size_t>(action.action.kind)];
      for (std::size_t e = action.begin; e < action.end; ++e) {
        const PassEvent& event = plan.step.events[e];
        if (event.kind != PassEvent::Kind::launch) continue;
        sum += plan.step.launches[event.index].cost.flops;
      }
    }
  }
  const auto beside_forward = [&](parallel::ActionKind kind) {
    constexpr double kSteps = 100;  // what else differs between kernels is more than a hundredth
    const double share = flops[static_cast<std::size_t>(kind)] /
                         flops[static_cast<std::size_t>(parallel::ActionKind::forward)];
    return std::max(1.0, std::round(share * kSteps)) / kSteps;
  };
  return {.forward = 1,
          .input_grad = beside_forward(parallel::ActionKind::input_grad),
          .weight_grad = beside_forward(parallel::ActionKind::weight_grad)};
}

bool is_stage_message(const CollectiveGroup& group) {
  const bool message = group.kind == Collective::send || group.kind == Collective::recv;
  return message && group.group == to_string(Axis::pp);
}

std::uint64_t message_bytes(const PassPlan& step) {
  std::uint64_t bytes = 0;
  for (const CollectiveGroup& group : step.collectives) {
    if (is_stage_message(group)) bytes = std::max(bytes, group.bytes);
  }
  return bytes;
}

namespace {

struct Mean {
  double sum = 0;
  int count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
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

std::vector<parallel::ActionCosts> stage_seconds(const PipelinePlan& pipeline,
                                                 const std::vector<ActionSeconds>& ranks) {
  const auto num_stages = static_cast<std::size_t>(pipeline.schedule.shape.num_stages);
  std::vector<std::array<Mean, 4>> means(num_stages);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& actions = pipeline.ranks[r].step.actions;
    require(actions.size() == ranks[r].size(), "times of {} actions, not {}", ranks[r].size(),
            actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const parallel::Action& action = actions[i].action;
      means[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.kind)].add(
          ranks[r][i]);
    }
  }
  std::vector<parallel::ActionCosts> stages;
  for (const auto& of_kind : means) stages.push_back(costs_of(of_kind));
  return stages;
}

parallel::ActionCosts inner_costs(const PipelinePlan& pipeline,
                                  const std::vector<ActionSeconds>& ranks) {
  const std::vector<parallel::ActionCosts> stages = stage_seconds(pipeline, ranks);
  std::array<Mean, 3> means;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages.size() > 2 && !is_between(pipeline, static_cast<int>(s))) continue;
    means[0].add(stages[s].forward);
    means[1].add(stages[s].input_grad);
    means[2].add(stages[s].weight_grad);
  }
  return {
      .forward = means[0].value(), .input_grad = means[1].value(), .weight_grad = means[2].value()};
}

parallel::Simulation simulate(const PipelinePlan& pipeline, const std::vector<ActionSeconds>& ranks,
                              const std::function<parallel::Link(int from, int to)>& link,
                              bool overlap) {
  parallel::SimulationInput input{.stages = {}, .link = link, .overlap_messages = overlap};
  const std::uint64_t bytes = message_bytes(pipeline.ranks.front().step);
  for (const parallel::ActionCosts& seconds : stage_seconds(pipeline, ranks)) {
    input.stages.push_back({.seconds = seconds, .output_bytes = bytes});
  }
  return parallel::simulate(pipeline.schedule, input);
}

}  // namespace llmtrain::plan
