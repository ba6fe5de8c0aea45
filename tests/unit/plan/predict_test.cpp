#include "lib/plan/predict.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/plan/plan_text.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/plan/synthetic_profile.hpp"

namespace llmtrain::plan {

namespace {

// Per step: 3 products of 100 x 100 x 100 (20 us each) and 5 sums of 100 kB (10 us each).
Plan small_plan() {
  Plan plan;
  plan.tokens_per_step = 1000;
  plan.model_flops_per_token = 2200;
  plan.step.launches = {
      {"add", DType::f32, {25000, 0, 0, 0}, {.bytes_read = 60e3, .bytes_written = 40e3}, 5},
      {"matmul", DType::f32, {100, 100, 100, 0}, {.flops = 2e6, .bytes_read = 1}, 3}};
  plan.step.events.assign(5, {PassEvent::Kind::launch, 0});
  plan.step.events.insert(plan.step.events.end(), 3, {PassEvent::Kind::launch, 1});
  return plan;
}

// The same, with collectives over two ranks: one starts after the first product and is awaited at
// the end; another is awaited at once.
Plan plan_of_two() {
  Plan plan = small_plan();
  plan.mesh.sizes = {2, 1, 1, 1};
  plan.step.collectives = {{Collective::all_reduce, "dp*sp", {0, 1}, 1000, 1},
                           {Collective::all_gather, "tp", {0, 1}, 4000, 1}};
  using enum PassEvent::Kind;
  plan.step.events = {{launch, 1}, {start, 0}, {launch, 1}, {launch, 1}, {start, 1}, {wait, 1}};
  plan.step.events.insert(plan.step.events.end(), 5, {launch, 0});
  plan.step.events.push_back({wait, 0});
  return plan;
}

// A call of 1000 bytes takes 70 us, of 4000 bytes 100 us.
HardwareProfile profile_of_two() {
  HardwareProfile profile = synthetic_profile();
  profile.ranks = 2;
  for (const Collective kind : {Collective::all_reduce, Collective::all_gather}) {
    profile.collectives.emplace(kind, KernelModel({{1000, 4000}}, {1000, 4000}, {70e-6, 100e-6}));
  }
  return profile;
}

}  // namespace

TEST_CASE("collectives take the cores of a CPU, and go on behind the kernels of a GPU") {
  const Plan plan = plan_of_two();
  HardwareProfile profile = profile_of_two();
  const StepPrediction cpu = predict_step(plan, profile, DType::f32);
  CHECK(cpu.seconds == test::relative(280e-6));
  CHECK(cpu.exposed_seconds == test::relative(170e-6));

  // The line is free for the second one after 20 + 70 us; it ends at 190; 50 us of sums follow.
  profile.device = DeviceKind::cuda;
  const StepPrediction gpu = predict_step(plan, profile, DType::f32);
  CHECK(gpu.seconds == test::relative(240e-6));
  CHECK(gpu.exposed_seconds == test::relative(130e-6));
  REQUIRE(gpu.collectives.size() == 2);
  CHECK(gpu.collectives[0].seconds == test::relative(70e-6));
  CHECK(gpu.collectives[0].sent_bytes == 1000);
  CHECK(gpu.collectives[1].sent_bytes == 2000);
}

TEST_CASE("what goes around a ring is waited for where it is received, between stages not") {
  HardwareProfile profile = profile_of_two();
  for (const Collective kind : {Collective::send, Collective::recv}) {
    profile.collectives.emplace(kind, KernelModel({{1000, 4000}}, {1000, 4000}, {70e-6, 100e-6}));
  }
  const auto seconds = [&](const char* group) {
    Plan plan = plan_of_two();
    plan.step.collectives = {{Collective::send, group, {0, 1}, 1000, 1},
                             {Collective::recv, group, {0, 1}, 4000, 1}};
    return predict_step(plan, profile, DType::f32).seconds;
  };
  const double launches = predict_step(small_plan(), profile, DType::f32).seconds;
  CHECK(seconds("pp") == test::relative(launches));
  CHECK(seconds("sp") == test::relative(launches + 100e-6));
}

TEST_CASE("collectives without a profile have their bytes, and no times") {
  const std::vector<CollectiveTime> all = collectives_of(plan_of_two().step, nullptr);
  REQUIRE(all.size() == 2);
  CHECK(all[0].sent_bytes == 1000);
  CHECK(all[1].sent_bytes == 2000);
  CHECK(all[1].seconds == 0);
  const std::string text = to_text(plan_of_two(), {});
  CHECK(text.find("all_gather tp x2") != std::string::npos);
}

TEST_CASE("a profile of other ranks is refused, with the remedy") {
  const RunShape run{.threads = 2, .compute = DType::f32};
  CHECK_THROWS_WITH_AS(
      planned_time(plan_of_two(), synthetic_profile(), run, "p.json"),
      "p.json was measured by 1 process at a time, but the run has 2 ranks; measure again with "
      "`mpirun -n 2 llmtrain doctor --threads 2`",
      RecipeError);
  CHECK(planned_time(plan_of_two(), profile_of_two(), run, "p.json").step.seconds > 0);
}

TEST_CASE("the plan's text and JSON tell the ranks and what they send") {
  const Plan plan = plan_of_two();
  const PlanContext context{
      .time = planned_time(plan, profile_of_two(), {.threads = 2, .compute = DType::f32}, "p")};
  const std::string text = to_text(plan, context);
  CHECK(text.find("2 = dp 2; memory and time of rank 0") != std::string::npos);
  CHECK(text.find("all_gather tp x2") != std::string::npos);
  CHECK(to_json(plan, context).find("\"sent_bytes\": 2000.0") != std::string::npos);
}

TEST_CASE("a step takes the sum of its launches") {
  const StepPrediction step = predict_step(small_plan(), synthetic_profile(), DType::f32);
  CHECK(step.seconds == test::relative(110e-6));
  REQUIRE(step.kernels.size() == 2);
  CHECK(step.kernels[0].name == "matmul forward fp32");
  CHECK(step.kernels[0].count == 3);
  CHECK(step.kernels[0].seconds == test::relative(60e-6));
  CHECK(step.kernels[1].name == "add fp32");
  CHECK(step.kernels[1].seconds == test::relative(50e-6));
}

TEST_CASE("MFU is model FLOP per second over the peak of the compute type") {
  const StepPrediction fp32 = predict_step(small_plan(), synthetic_profile(), DType::f32);
  // 2200 FLOP x 1000 tokens in 110 us are 20 GFLOP/s.
  CHECK(fp32.tokens_per_second == test::relative(1000 / 110e-6));
  CHECK(fp32.mfu == test::relative(0.1));
  CHECK(predict_step(small_plan(), synthetic_profile(), DType::bf16).mfu == test::relative(0.05));
  CHECK(predict_step(small_plan(), synthetic_profile(), DType::f64).mfu == 0);
}

TEST_CASE("the formula of MFU has the peak of all ranks") {
  Plan plan = small_plan();
  CHECK(mfu_formula(plan, {2e9, DType::bf16, 0}).find("tokens/s / 2 GFLOP/s (") !=
        std::string::npos);
  plan.mesh.sizes = {1, 1, 4, 2};
  CHECK(mfu_formula(plan, {2e9, DType::bf16, 0}).find("tokens/s / (8 ranks x 2 GFLOP/s) (") !=
        std::string::npos);
}

TEST_CASE("at half the rate everything takes twice as long") {
  const RunShape run{.threads = 2, .compute = DType::f32, .steps = 12, .tokens = 11000};
  const PlannedTime usual = planned_time(small_plan(), synthetic_profile(), run, "p.json");
  // Moments at full speed do not help: the mean counts.
  const PlannedTime slow =
      at_rate(usual, {.peak = usual.step.peak_flops, .mean = usual.step.peak_flops / 2});
  CHECK(slow.step.seconds == test::relative(2 * usual.step.seconds));
  CHECK(slow.step.tokens_per_second == test::relative(usual.step.tokens_per_second / 2));
  CHECK(slow.step.kernels.front().seconds ==
        test::relative(2 * usual.step.kernels.front().seconds));
  CHECK(slow.run_seconds == test::relative(2 * usual.run_seconds));
  CHECK(slow.step.mfu == test::relative(usual.step.mfu / 2));
  CHECK(at_rate(usual, FmaRate{}).step.seconds == usual.step.seconds);
}

TEST_CASE("a kernel that was not measured is named, with the remedy") {
  Plan plan = small_plan();
  plan.step.launches.push_back({"rope", DType::bf16, {10, 10, 0, 0}, {.bytes_read = 100}, 1});
  try {
    predict_step(plan, synthetic_profile(), DType::f32);
    FAIL("accepted");
  } catch (const RecipeError& error) {
    const std::string message = error.what();
    CHECK(message.find("rope bf16") != std::string::npos);
    CHECK(message.find("llmtrain doctor") != std::string::npos);
  }
}

TEST_CASE("the time of a run goes by its tokens, and other threads are refused") {
  const RunShape run{.threads = 2, .compute = DType::f32, .steps = 12, .tokens = 11000};
  const PlannedTime time = planned_time(small_plan(), synthetic_profile(), run, "p.json");
  CHECK(time.run_seconds == test::relative(11 * 110e-6));
  const auto seconds_within = [&](std::int64_t steps, std::uint64_t tokens, double max_seconds) {
    const RunShape cut{.threads = 2,
                       .compute = DType::f32,
                       .steps = steps,
                       .tokens = tokens,
                       .max_seconds = max_seconds};
    return planned_time(small_plan(), synthetic_profile(), cut, "p.json").run_seconds;
  };
  CHECK(seconds_within(12, 11000, 1) == time.run_seconds);
  CHECK(seconds_within(12, 11000, 1e-3) == 1e-3);
  CHECK(seconds_within(0, 0, 1e-3) == 1e-3);
  CHECK(seconds_within(0, 0, 0) == 0);
  RunShape wider = run;
  wider.threads = 4;
  CHECK_THROWS_WITH_AS(planned_time(small_plan(), synthetic_profile(), wider, "p.json"),
                       doctest::Contains("--threads 4"), RecipeError);
}

TEST_CASE("the plan's text and JSON show times, or how to get them") {
  const Plan plan = small_plan();
  const std::string without = to_text(plan, {});
  CHECK(without.find("run `llmtrain doctor` for times") != std::string::npos);
  CHECK(without.find("tokens per step") != std::string::npos);
  CHECK(to_json(plan, {}).find("\"time\"") == std::string::npos);

  const RunShape run{.threads = 2, .compute = DType::f32, .steps = 11, .tokens = 11000};
  const auto time = planned_time(plan, synthetic_profile(), run, "p.json");
  const std::string with = to_text(plan, {.time = time, .limit_bytes = 1 << 20});
  CHECK(with.find("0.11 ms") != std::string::npos);
  CHECK(with.find("of 1.00 MiB") != std::string::npos);
  Plan large = plan;
  large.step.extent_bytes = 1000;
  CHECK(to_text(large, {.limit_bytes = 999}).find("does NOT fit") != std::string::npos);
  CHECK(to_text(large, {.limit_bytes = 1000}).find("NOT") == std::string::npos);
  CHECK(with.find("10.0%") != std::string::npos);
  CHECK(with.find("FMA peak of fp32, 2 threads") != std::string::npos);
  CHECK(with.find("time for 11 steps") != std::string::npos);
  CHECK(with.find("matmul forward fp32") < with.find("add fp32"));
  CHECK(with.find("llmtrain doctor") == std::string::npos);
  CHECK(to_json(plan, {.time = time}).find("\"step_seconds\"") != std::string::npos);
}

}  // namespace llmtrain::plan
