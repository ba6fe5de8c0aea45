// What the training loop does around its steps.
#include <doctest/doctest.h>

#include "tests/e2e/workspace.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain {

namespace {

std::vector<train::StepRecord> evaluations(const Workspace& here) {
  std::vector<train::StepRecord> found;
  for (const train::StepRecord& record : here.metrics()) {
    if (record.number(train::metric::kEvalLoss)) found.push_back(record);
  }
  return found;
}

}  // namespace

TEST_CASE("the last evaluation is of all held-out text, whatever eval.max_samples") {
  const Workspace here(kTinyRecipe), whole(kTinyRecipe);
  run_well(here, {"eval.max_samples=1"});
  run_well(whole, {});
  const auto few = evaluations(here), all = evaluations(whole);
  REQUIRE(few.size() == 3);
  REQUIRE(all.size() == 3);
  for (int i = 0; i < 3; ++i) {
    const auto is_whole = few[i].number(train::metric::kEvalBitsPerByte).has_value();
    CHECK(is_whole == (i == 2));
    CHECK(all[i].number(train::metric::kEvalBitsPerByte).has_value());
    const bool same =
        few[i].number(train::metric::kEvalLoss) == all[i].number(train::metric::kEvalLoss);
    CHECK(same == (i == 2));
  }
}

TEST_CASE("the time left is that of the steps left") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  int records = 0;
  for (const train::StepRecord& record : here.metrics()) {
    const auto eta = record.number(train::metric::kEtaSeconds);
    if (!eta) continue;  // of the evaluation at the end
    const double seconds = record.number(train::metric::kStepSeconds).value();
    CHECK(*eta == test::relative(static_cast<double>(6 - record.step) * seconds));
    ++records;
  }
  CHECK(records == 6);
}

TEST_CASE("every full step is compared with the plan, and the run says so") {
  const Workspace here(kTinyRecipe);
  const auto first = here.run();
  CHECK(first.exit_code == 0);
  CHECK(holds(first.output, {"\n6 steps took memory as planned"}));
  // The smaller steps of a ramp have no plan: two of two samples, then four of four.
  const Workspace ramp(kTinyRecipe);
  const auto ramped = ramp.run({"training.rampup_batch_size={start: 2, increment: 2, samples: 4}"});
  INFO(ramped.output);
  CHECK(ramped.exit_code == 0);
  CHECK(holds(ramped.output, {"\n4 steps took memory as planned"}));
}

TEST_CASE("a run does not go on with other data, nor with other attention across documents") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  for (const char* change :
       {"data.packing.cross_document_attention=true", "data.packing.reset_positions=false",
        "data.packing.strategy=best_fit", "training.seq_len=8"}) {
    CAPTURE(change);
    const auto result = here.run({"training.max_steps=8", change});
    INFO(result.output);
    CHECK(result.exit_code == 4);
    CHECK(holds(result.output, {"the training data, their packing, the tokenizer or where "
                                "data.stages begin is not what step 6"}));
  }
  run_well(here, {"training.max_steps=8"});
}

TEST_CASE("what an earlier keep_every has kept for good is named before saves delete it") {
  const Workspace here(kTinyRecipe);
  const auto run = [&](const std::string& steps, const std::string& every) {
    const auto result = here.run({"checkpoint.interval=5", "checkpoint.keep_latest=2",
                                  "training.max_steps=" + steps, "checkpoint.keep_every=" + every});
    CHECK_MESSAGE(result.exit_code == 0, result.output);
    return result.output;
  };
  constexpr std::string_view kWarns = "warning: checkpoint.keep_every was";
  CHECK(run("8", "2").find(kWarns) == std::string::npos);
  CHECK(run("9", "2").find(kWarns) == std::string::npos);
  CHECK(run("10", "1").find(kWarns) == std::string::npos);
  CHECK(run("11", "2").find("keep_every was 1, which kept steps 9 for good") != std::string::npos);
  CHECK(holds(run("12", "4"), {"keep_every was 2, which kept steps 2, 6, 10 for good: from now on "
                               "saves delete them"}));
}

}  // namespace llmtrain
