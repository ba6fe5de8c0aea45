#include "lib/plan/pipeline.hpp"

#include <doctest/doctest.h>

#include "lib/plan/plan_text.hpp"
#include "lib/plan/predict.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/plan/synthetic_profile.hpp"

namespace llmtrain::plan {

namespace {

using enum PassEvent::Kind;
using parallel::Action;
using parallel::ActionKind;

constexpr int kSum = 0, kProduct = 1;  // of 10 us and of 20 us

// Two stages and two micro-batches, one forward, one backward: a forward is one product, a backward
// two; zeroing before and an update behind are a sum each.
Plan rank_of_pipeline(int rank, const std::vector<Action>& actions) {
  Plan plan;
  plan.tokens_per_step = 1000;
  plan.model_flops_per_token = 2200;
  plan.mesh.sizes[static_cast<int>(Axis::pp)] = 2;
  plan.rank = rank;
  plan.step.launches = {
      {"add", DType::f32, {25000, 0, 0, 0}, {.bytes_read = 60e3, .bytes_written = 40e3}, 2},
      {"matmul", DType::f32, {100, 100, 100, 0}, {.flops = 2e6, .bytes_read = 1}, 6}};
  plan.step.collectives = {{Collective::send, "pp", {0, 1}, 4000, 2}};
  plan.step.events.push_back({launch, kSum});
  for (const Action& action : actions) {
    const std::size_t begin = plan.step.events.size();
    plan.step.events.push_back({launch, kProduct});
    if (action.kind == ActionKind::backward) plan.step.events.push_back({launch, kProduct});
    plan.step.actions.push_back({action, begin, plan.step.events.size()});
    plan.step.events.push_back({start, 0});
  }
  plan.step.events.push_back({launch, kSum});
  return plan;
}

PipelinePlan two_stages() {
  PipelinePlan pipeline{.schedule_name = "1f1b", .schedule = {}, .ranks = {}};
  pipeline.schedule = parallel::find_schedule("1f1b").make(
      {.num_ranks = 2, .num_stages = 2, .num_micro_batches = 2});
  for (int r = 0; r < 2; ++r) {
    pipeline.ranks.push_back(
        rank_of_pipeline(r, pipeline.schedule.ranks[static_cast<std::size_t>(r)]));
  }
  return pipeline;
}

HardwareProfile profile_of_links(double latency, double of_4000_bytes) {
  HardwareProfile profile = synthetic_profile();
  profile.ranks = 2;
  profile.device = DeviceKind::cuda;
  profile.collectives.emplace(Collective::send,
                              KernelModel({{1, 4000}}, {1, 4000}, {latency, of_4000_bytes}));
  return profile;
}

}  // namespace

TEST_CASE("a step of a pipeline takes what its schedule takes for the actions' times") {
  const PipelinePlan pipeline = two_stages();
  // (m + p - 1) (F + B) and the sums before and behind.
  const StepPrediction free =
      predict_step(pipeline.ranks[0], profile_of_links(1e-12, 2e-12), DType::f32, &pipeline);
  CHECK(free.seconds == test::relative(3 * 60e-6 + 20e-6, 1e-6));
  REQUIRE(free.pipeline.has_value());
  CHECK(free.pipeline->bubble_fraction == test::relative(1.0 / 3, 1e-6));

  // The first forward's message and the last backward's are waited for: 5 us and 15 us of bytes.
  const StepPrediction slow =
      predict_step(pipeline.ranks[0], profile_of_links(5e-6, 20e-6), DType::f32, &pipeline);
  CHECK(slow.seconds >= 3 * 60e-6 + 20e-6 + 2 * 20e-6 - 1e-9);
  CHECK(slow.seconds <= 3 * 60e-6 + 20e-6 + 4 * 20e-6);
  CHECK(slow.exposed_seconds > free.exposed_seconds + 10e-6);
}

TEST_CASE("what goes around a ring is no message between stages") {
  PipelinePlan pipeline = two_stages();
  PassPlan& step = pipeline.ranks[0].step;
  const std::uint64_t bytes = message_bytes(step);
  CHECK(bytes > 0);
  step.collectives.push_back({Collective::send, "sp", {0, 2}, 1 << 20, 1});
  CHECK(message_bytes(step) == bytes);
}

TEST_CASE("one rank of a pipeline has no time by itself") {
  const PipelinePlan pipeline = two_stages();
  CHECK_THROWS(predict_step(pipeline.ranks[0], profile_of_links(1e-9, 1e-9), DType::f32));
}

TEST_CASE("the text of a plan shows every rank of its pipeline") {
  PipelinePlan pipeline = two_stages();
  pipeline.ranks[1].step.extent_bytes = 3 << 20;
  const std::string text =
      to_text(pipeline.ranks[0], {.limit_bytes = 2 << 20, .pipeline = &pipeline});
  CHECK(text.find("1f1b, 2 stages, 2 micro-batches") != std::string::npos);
  CHECK(text.find("does NOT fit") != std::string::npos);
}

}  // namespace llmtrain::plan
