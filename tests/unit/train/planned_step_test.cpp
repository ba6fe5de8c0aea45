#include "lib/train/planned_step.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "lib/plan/plan.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::train {

namespace {

constexpr std::string_view kModel =
    "architecture: gpt2, vocab_size: 31, hidden_size: 12, num_hidden_layers: 2, "
    "num_attention_heads: 2, initializer_range: 0.4";

}  // namespace

TEST_CASE("a step that allocates otherwise than planned ends the run and names the place") {
  test::SmallEngine engine(kModel);
  const auto planned = plan::make_plan(engine.options(), 4, 1).step_trace;
  const std::vector<std::int32_t> text{3, 14, 15, 9, 26};
  const engine::StepBatch batch = test::small_batch({text, text, text, text});
  const auto message = [&](const std::vector<AllocationEvent>& trace) -> std::string {
    std::string what;
    try {
      PlannedSteps(trace).launch(*engine, engine.device(), batch, 1, {.lr_factor = 0});
    } catch (const std::exception& error) {
      what = error.what();
    }
    CHECK(engine->settle_step().loss_sum > 0);
    return what;
  };

  CHECK(message(planned).empty());
  std::vector<AllocationEvent> larger = planned;
  larger[3].bytes += 512;
  CHECK(message(larger).find("step 1: allocations differ from the plan's at line 4") !=
        std::string::npos);
  std::vector<AllocationEvent> moved = planned;
  moved[3].offset += 512;
  CHECK(message(moved).find("step 1: allocations differ from the plan's at line 4") !=
        std::string::npos);
  std::vector<AllocationEvent> shorter = planned;
  shorter.pop_back();
  CHECK(message(shorter).find("instead of the end") != std::string::npos);
  CHECK(message({}).find("line 1") != std::string::npos);
}

TEST_CASE("a step that is not finite takes memory as planned too") {
  test::SmallEngine engine(kModel);
  for (const auto& parameter : engine->parameters().all()) {
    const Tensor& master = parameter->master();
    std::fill_n(master.view().as<double>(), master.view().numel(), std::nan(""));
  }
  const auto planned = plan::make_plan(engine.options(), 4, 1).step_trace;
  const std::vector<std::int32_t> text{3, 14, 15, 9, 26};
  const engine::StepBatch batch = test::small_batch({text, text, text, text});
  PlannedSteps steps(planned);
  steps.launch(*engine, engine.device(), batch, 1, {.lr_factor = 0});
  CHECK_FALSE(engine->settle_step().update.finite);
  CHECK(steps.count() == 1);
}

TEST_CASE("updates on the host that take more memory than planned end the run") {
  const test::SmallEngine small(kModel);
  engine::EngineOptions options = small.options();
  options.offload = optim::Offload{.place = optim::OffloadPlace::host};
  const plan::Plan planned = plan::make_plan(options, 4, 1);
  const std::vector<std::int32_t> text{3, 14, 15, 9, 26};
  const engine::StepBatch batch = test::small_batch({text, text, text, text});
  for (const std::uint64_t lacking : {0, 256}) {
    Device device(make_cpu_memory(), std::uint64_t{1} << 28);
    engine::Engine engine({.device = &device, .table = &kernels::cpu_table()}, options);
    engine.initialize();
    PlannedSteps steps(planned.step_trace, planned.host_update_bytes() - lacking);
    const auto step = [&] { steps.launch(engine, device, batch, 1, {}); };
    if (lacking == 0) {
      CHECK_NOTHROW(step());
    } else {
      CHECK_THROWS_AS(step(), InternalError);
    }
  }
}

}  // namespace llmtrain::train
