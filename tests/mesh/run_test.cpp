// `llmtrain run` under mpirun: what one user sees of several ranks.
#include <cmath>
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("ranks of mpirun train one run, which one rank writes and any number goes on with") {
  const Workshop w;
  const ProcessResult one = w.run(1, {"run.output_dir=one"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const ProcessResult two = w.run(2, {"run.output_dir=two"});
  REQUIRE_MESSAGE(two.exit_code == 0, two.output);
  for (const std::string_view key : {train::metric::kLoss, train::metric::kEvalLoss}) {
    const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", key);
    CHECK(std::abs(last_loss(w.scratch / "two" / "metrics.jsonl", key) - expected) <=
          1e-11 * expected);
  }
  CHECK(w.records("two").size() == w.records("one").size());
  CHECK(two.output.find("12 steps took memory as planned") != std::string::npos);
  for (const auto& record : train::read_metrics(w.scratch / "two" / "metrics.jsonl")) {
    const auto rate = record.number(train::metric::kTokensPerSecond);
    if (!rate) continue;
    const double tokens = *rate * record.number(train::metric::kStepSeconds).value();
    CHECK(tokens == doctest::Approx(4 * 16));  // of all ranks
  }
  // Each line once, whatever the number of ranks.
  const std::size_t saved = two.output.find("saved two/checkpoints/step-00000012");
  REQUIRE(saved != std::string::npos);
  CHECK(two.output.find("saved two/checkpoints/step-00000012", saved + 1) == std::string::npos);

  // Two ranks begin, four end; and one ends what two began.
  REQUIRE(w.run(2, {"run.output_dir=on", "training.max_steps=12", "checkpoint.interval=4"},
                {.signal = SIGTERM, .signal_after = "step-00000004"})
              .exit_code != 0);
  const ProcessResult four = w.run(4, {"run.output_dir=on"});
  REQUIRE_MESSAGE(four.exit_code == 0, four.output);
  CHECK(four.output.find("resumed from step") != std::string::npos);
  const double expected = last_loss(w.scratch / "one" / "metrics.jsonl", train::metric::kLoss);
  CHECK(std::abs(last_loss(w.scratch / "on" / "metrics.jsonl", train::metric::kLoss) - expected) <=
        1e-11 * expected);
}

namespace {

// One rank's run, and those of ranks that share its model.
class SharedModel {
 public:
  SharedModel() {
    run(1, "one", {});
    std::filesystem::copy(w_.scratch / "one", w_.scratch / "longer",
                          std::filesystem::copy_options::recursive);
    run(1, "longer", {"training.max_steps=16"});  // goes on from there
  }

  ProcessResult run(int ranks, std::string_view name, std::vector<std::string> overrides,
                    ProcessEvents events = {}) const {
    overrides.insert(overrides.begin(), "model.num_hidden_layers=4");
    overrides.push_back(fmt::format("run.output_dir={}", name));
    ProcessResult result = w_.run(ranks, overrides, events);
    CAPTURE(result.output);
    REQUIRE((result.exit_code == 0) == (events.signal == 0));
    return result;
  }
  void check_losses(const std::string& name, const std::string& expected_of) const {
    for (const std::string_view key : {train::metric::kLoss, train::metric::kEvalLoss}) {
      const double expected = last_loss(w_.scratch / expected_of / "metrics.jsonl", key);
      CHECK(std::abs(last_loss(w_.scratch / name / "metrics.jsonl", key) - expected) <=
            1e-11 * expected);
    }
  }
  std::string samples(std::string_view name) const {
    return read_file(w_.scratch.path() / name / "samples.jsonl");
  }

 private:
  Workshop w_;
};

}  // namespace

TEST_CASE("ranks that share a model train, decode and save what one rank does, for any layout") {
  const SharedModel model;
  CHECK(!model.samples("one").empty());
  int number = 0;
  for (const std::string layout :
       {"parallelism.tp=2", "parallelism={pp: 2, pp_schedule: zbv}", "parallelism.pp=2",
        "parallelism={pp: 2, pp_schedule: interleaved_1f1b, pp_stages_per_rank: 2}",
        "parallelism={pp: 2, pp_stages: [embed_tokens layers.0, layers.1-3 norm lm_head]}",
        "parallelism.sp=2", "parallelism={sp: 2, sp_algo: ring}"}) {
    CAPTURE(layout);
    const std::string name = fmt::format("shared-{}", number);
    const ProcessResult shared = model.run(2, name, {layout});
    CHECK(shared.output.find("12 steps took memory as planned") != std::string::npos);
    model.check_losses(name, "one");
    CHECK(model.samples(name) == model.samples("one"));

    // Two ranks share the model until they are stopped; four, two by two, go on; and then one.
    if (number++ > 1 && is_quick()) continue;
    const std::string on = name + "-on";
    model.run(2, on, {layout}, {.signal = SIGTERM, .signal_after = "step-00000004"});
    const ProcessResult four = model.run(4, on, {layout, "parallelism.dp=2"});
    CHECK(four.output.find("resumed from step") != std::string::npos);
    model.run(1, on, {"training.max_steps=16"});
    model.check_losses(on, "longer");
  }
}

TEST_CASE("a head of its own goes on from tied tables, whatever ranks had them and have it") {
  const Workshop w;
  const auto run = [&](int ranks, const std::string& name, const std::string& layout, bool tied) {
    std::vector<std::string> overrides{
        "run.output_dir=" + name, fmt::format("model.tie_word_embeddings={}", tied),
        fmt::format("training.max_steps={}", tied ? 4 : 8), "lr_scheduler.horizon=steps"};
    if (!layout.empty()) overrides.push_back("parallelism=" + layout);
    const ProcessResult result = w.run(ranks, overrides);
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK((result.output.find("resumed from step 4") != std::string::npos) == !tied);
  };
  run(1, "one", "", true);
  std::filesystem::copy(w.scratch / "one", w.scratch / "tied",
                        std::filesystem::copy_options::recursive);
  run(1, "one", "", false);
  const std::vector<double> expected = losses_and_norms(w.scratch / "one");
  const auto check = [&](const std::string& name) {
    const std::vector<double> found = losses_and_norms(w.scratch / name);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(std::abs(found[i] - expected[i]) <= 1e-11 * expected[i]);
    }
  };
  int number = 0;
  for (const std::string layout : {"{tp: 2}", "{pp: 2}", "{dp: 2, zero: 3}"}) {
    CAPTURE(layout);
    const std::string on = fmt::format("on-{}", number), from = fmt::format("from-{}", number);
    ++number;
    std::filesystem::copy(w.scratch / "tied", w.scratch / on,
                          std::filesystem::copy_options::recursive);
    run(2, on, layout, false);
    check(on);
    run(2, from, layout, true);
    run(1, from, "", false);
    check(from);
  }
}

TEST_CASE("stages evaluate several samples at a time, whatever ranks have them, and drop nothing") {
  const Workshop w;
  const auto eval_loss = [&](int ranks, const std::string& name, const std::string& layout) {
    // 22 micro-batches, the last one of one sample.
    const ProcessResult result =
        w.run(ranks, {"run.output_dir=" + name, layout, "model.num_hidden_layers=4",
                      "model.attention_dropout=0.3", "training.max_steps=1",
                      "training.global_batch_size=12", "training.micro_batch_size=3",
                      "eval.interval=1", "eval.max_samples=64"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return last_loss(w.scratch / name / "metrics.jsonl", train::metric::kEvalLoss);
  };
  const double expected = eval_loss(1, "one", "parallelism.pp=1");
  REQUIRE(expected > 0);
  int number = 0;
  for (const std::string layout :
       {"parallelism.pp=2", "parallelism={pp: 2, pp_schedule: zbv}",
        "parallelism={pp: 2, pp_schedule: interleaved_1f1b, pp_stages_per_rank: 2}",
        "parallelism={pp: 2, tp: 2, tp_sequence_parallel: true, pp_schedule: dualpipev}"}) {
    CAPTURE(layout);
    const int ranks = layout.find("tp: 2") == std::string::npos ? 2 : 4;
    const double found = eval_loss(ranks, fmt::format("shared-{}", number++), layout);
    CHECK(std::abs(found - expected) <= 1e-11 * expected);
  }
}

TEST_CASE("ranks that compare their calls train as those that do not") {
  const Workshop w;
  REQUIRE(w.run(2, {"run.output_dir=plain"}).exit_code == 0);
  const ProcessResult checked =
      w.run(2, {"run.output_dir=checked", "debug.check_collectives=true"});
  REQUIRE_MESSAGE(checked.exit_code == 0, checked.output);
  CHECK(w.records("checked") == w.records("plain"));
  // A stage between others exchanges more messages than they do.
  const ProcessResult stages =
      w.run(3, {"run.output_dir=stages", "model.num_hidden_layers=3", "parallelism={dp: 1, pp: 3}",
                "debug.check_collectives=true"});
  CHECK_MESSAGE(stages.exit_code == 0, stages.output);
}

TEST_CASE("what one process does is refused, once, when a launcher starts several") {
  const Workshop w;
  REQUIRE(w.run(1, {"run.output_dir=one"}).exit_code == 0);
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"generate", "one", "--prompt", "word"}, {"eval", "one"}}) {
    CAPTURE(verb[0]);
    const auto start = [&](int ranks) {
      std::vector<std::string> command = ranks > 1 ? mpirun(ranks) : std::vector<std::string>();
      command.push_back(LLMTRAIN_EXECUTABLE);
      command.insert(command.end(), verb.begin(), verb.end());
      return run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
    };
    CHECK(start(1).exit_code == 0);
    const ProcessResult two = start(2);
    CHECK(two.exit_code == 2);
    const std::string why =
        fmt::format("`llmtrain {}` is the work of one process, and mpirun has started 2", verb[0]);
    const std::size_t said = two.output.find(why);
    REQUIRE_MESSAGE(said != std::string::npos, two.output);
    CHECK(two.output.find(why, said + 1) == std::string::npos);
  }
}

}  // namespace llmtrain::test
