// With run.determinism: layout the number of data ranks, the stage of ZeRO and the pipeline show in
// no bit.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/layouts.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

constexpr int kSteps = 20;
constexpr int kGpuSteps = 3;  // parts of a step would be recorded in the second

struct Run {
  int ranks;
  std::vector<std::string> parallelism;
  /// Left out where there is little time (is_quick).
  bool extra = false;
};

Run data(int dp, int zero) {
  return {dp, {fmt::format("parallelism.dp={}", dp), fmt::format("parallelism.zero={}", zero)}};
}

Run pipeline(int dp, int pp, std::string_view schedule, int zero = 0, int stages_per_rank = 0) {
  Run run = data(dp, zero);
  run.ranks *= pp;
  run.parallelism.push_back(fmt::format("parallelism.pp={}", pp));
  run.parallelism.push_back(fmt::format("parallelism.pp_schedule={}", schedule));
  if (stages_per_rank > 0) {
    run.parallelism.push_back(fmt::format("parallelism.pp_stages_per_rank={}", stages_per_rank));
  }
  return run;
}

Run extra(Run run) {
  run.extra = true;
  return run;
}

// Every data rank has another number of the step's micro-batches.
std::vector<Run> runs() {
  std::vector<Run> all{
      extra(data(2, 0)),
      extra(data(4, 0)),
      data(8, 0),
      extra(data(2, 1)),
      data(4, 1),
      extra(data(8, 1)),
      data(2, 2),
      extra(data(8, 2)),
      extra(data(2, 3)),
      data(4, 3),
      extra(data(8, 3)),
      extra(pipeline(1, 2, "gpipe")),
      extra(pipeline(1, 2, "1f1b")),
      pipeline(1, 2, "interleaved_1f1b", 0, 2),
      extra(pipeline(1, 2, "zb_h1")),
      extra(pipeline(1, 2, "zbv")),
      pipeline(1, 2, "v_half"),
      extra(pipeline(1, 2, "dualpipev")),
      extra(pipeline(1, 4, "1f1b")),
      extra(pipeline(1, 4, "eager_1f1b")),
      extra(pipeline(1, 4, "zb_h1")),
      extra(pipeline(2, 2, "1f1b", 0)),
      extra(pipeline(2, 2, "1f1b", 1)),
      extra(pipeline(2, 4, "1f1b", 1)),
      extra(pipeline(2, 4, "zb_h1", 2)),
      pipeline(2, 2, "zbv", 3),
      extra(pipeline(4, 2, "zb_h1", 2)),
      extra(pipeline(2, 4, "1f1b", 3)),
  };
  all.push_back(data(4, 2));
  all.back().parallelism.push_back("parallelism.dp_replicate=2");
  return all;
}

const ProbeModel& model_named(std::string_view name) {
  const auto& models = probe_models();
  return *std::find_if(models.begin(), models.end(),
                       [&](const ProbeModel& model) { return model.name == name; });
}

// Of zeros, too, which compare equal with either sign.
bool are_same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<std::uint64_t, double>,
                            std::bit_cast<std::uint64_t, double>);
}

void same_bits(const ProbeResult& found, const ProbeResult& expected) {
  REQUIRE(found.problem == "");
  REQUIRE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    REQUIRE(are_same_bits(found.tensors.at(name).values, tensor.values));
  }
  REQUIRE(found.routing.size() == expected.routing.size());
  for (const auto& [name, choices] : expected.routing) {
    CAPTURE(name);
    REQUIRE(found.routing.contains(name));
    REQUIRE(are_same_bits(found.routing.at(name).values, choices.values));
  }
  for (const auto& [name, value] : expected.numbers) {
    CAPTURE(name);
    REQUIRE(are_same_bits({found.numbers.at(name)}, {value}));
  }
}

// All runs have the bits of one rank.
void compare_runs(const ProbeModel& model, const std::vector<Run>& several,
                  std::vector<std::string> settings, int steps = kSteps) {
  settings.push_back("run.determinism=layout");
  CAPTURE(fmt::format("{} {}", model.name, fmt::join(settings, " ")));
  const ProbeResult one = run_probe(model, 1, steps, settings);
  REQUIRE(one.problem == "");
  REQUIRE(one.numbers.size() == 2 * static_cast<std::size_t>(steps) + 1);
  for (const Run& run : several) {
    if (run.extra && is_quick()) continue;
    CAPTURE(fmt::format("{} ranks {}", run.ranks, fmt::join(run.parallelism, " ")));
    std::vector<std::string> overrides = settings;
    overrides.insert(overrides.end(), run.parallelism.begin(), run.parallelism.end());
    same_bits(run_probe(model, run.ranks, steps, overrides), one);
  }
}

}  // namespace

TEST_CASE("with determinism: layout every layout has the bits of one rank") {
  set_mpi_environment();
  // A tied table, biases, dropout of three kinds; 16 micro-batches, two for each virtual worker.
  const std::vector<std::string> shape{"training.global_batch_size=32", "run.virtual_workers=8",
                                       "model.num_hidden_layers=4",     "model.resid_pdrop=0.2",
                                       "model.embd_pdrop=0.1",          "model.attn_pdrop=0.3"};
  for (const std::vector<std::string>& precision :
       {std::vector<std::string>{"precision.compute=fp32"},
        {"precision.compute=bf16"},
        {"precision={compute: fp8, fp8: {scaling: delayed, amax_history: 2, include: [\"*\"]}}"}}) {
    std::vector<std::string> settings = shape;
    settings.insert(settings.end(), precision.begin(), precision.end());
    compare_runs(model_named("gpt2"), runs(), settings);
  }
}

TEST_CASE(
    "with determinism: layout sinks, experts and recomputed blocks have the bits of one rank") {
  set_mpi_environment();
  const Run sliced = data(4, 3), staged = pipeline(2, 2, "zb_h1", 2);
  compare_runs(model_named("gpt_oss"), {sliced, extra(staged)}, {"precision.compute=bf16"});
  compare_runs(model_named("qwen3"), {extra(sliced), staged},
               {"precision.compute=fp32", "activation_checkpoint.mode=full"});
  compare_runs(model_named("mixtral"), {sliced, extra(staged)}, {"precision.compute=fp32"});
  // In fp64 sums of losses round, too.
  compare_runs(model_named("llama"), {data(4, 1)}, {"precision.compute=fp64"});
  compare_runs(model_named("llama"), {data(2, 1)},
               {"precision.compute=bf16", "optimizer.name=muon"});
  compare_runs(model_named("llama"), {sliced, extra(data(4, 1)), staged},
               {"precision.compute=bf16", "optimizer.state_dtype=bf16"});
}

TEST_CASE("with determinism: layout a run evaluates held-out text to the bits of one rank") {
  const Workshop w;
  // In fp64 sums of losses round, and data ranks have other samples each; the last evaluation has
  // all, which are no whole number of rounds.
  const auto losses = [&](int ranks, const std::string& name, const std::string& parallelism) {
    const ProcessResult result =
        w.run(ranks, {"run.output_dir=" + name, "parallelism=" + parallelism,
                      "run.determinism=layout", "training.max_steps=6", "eval.interval=3",
                      "eval.sample_prompts=[]", "eval.max_samples=37"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    std::vector<double> found;
    for (const auto& record : train::read_metrics(w.scratch / name / "metrics.jsonl")) {
      if (const auto loss = record.number(train::metric::kEvalLoss)) found.push_back(*loss);
    }
    return found;
  };
  const std::vector<double> one = losses(1, "one", "{}");
  REQUIRE(one.size() == 2);
  CHECK(losses(2, "dp2", "{dp: 2}") == one);
  CHECK(losses(4, "dp4", "{dp: 4, zero: 3}") == one);
  CHECK(losses(2, "pp2", "{pp: 2}") == one);
}

// Ranks share the GPU that there is, or have one each.
TEST_CASE("on GPUs with determinism: layout a layout has the bits of one rank on a GPU" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  set_mpi_environment();
  ::setenv("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU, 1);
  const std::vector<Run> some{extra(data(2, 0)),
                              data(4, 1),
                              extra(data(2, 2)),
                              extra(data(2, 3)),
                              extra(pipeline(1, 2, "zbv")),
                              pipeline(2, 2, "zb_h1", 3)};
  // 8 micro-batches, two for each virtual worker; heads of 8, so that bf16 goes to tensor cores.
  const std::vector<std::string> shape{
      "run.device=cuda",       "run.memory_limit=256 MiB",  "training.global_batch_size=16",
      "run.virtual_workers=4", "model.num_hidden_layers=4", "model.resid_pdrop=0.2",
      "model.embd_pdrop=0.1",  "model.attn_pdrop=0.3",      "model.hidden_size=32"};
  for (const auto& [gpus, compute] :
       {std::pair("1", "fp32"), std::pair("4", "bf16"), std::pair("1", "fp16")}) {
    CAPTURE(gpus);
    ::setenv("LLMTRAIN_FAKE_GPUS", gpus, 1);
    std::vector<std::string> settings = shape;
    settings.push_back(fmt::format("precision.compute={}", compute));
    compare_runs(model_named("gpt2"), some, settings, kGpuSteps);
  }
  ::unsetenv("LLMTRAIN_FAKE_GPUS");
}

}  // namespace llmtrain::test
