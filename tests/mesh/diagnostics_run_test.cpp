// metrics.diagnostics_interval under mpirun: each number of a tensor counts once, on whichever
// ranks it lies.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

train::StepRecord diagnosed(const Workshop& w, const std::string& run) {
  const auto records = train::read_metrics(w.scratch / run / "metrics.jsonl");
  const auto found = std::ranges::find_if(
      records, [](const auto& record) { return record.find("gradient/rms") != nullptr; });
  REQUIRE(found != records.end());
  return *found;
}

/// What depends on where a number falls between two bins, which its rounding decides.
bool is_of_bins(const std::string& key) {
  return std::ranges::any_of(std::array{"p50", "p99", "underflow", "overflow"},
                             [&](const char* what) { return key.find(what) != std::string::npos; });
}

void check_as_one(const train::StepRecord& found, const train::StepRecord& expected,
                  const std::string& without) {
  int compared = 0;
  for (const auto& [key, value] : expected.fields) {
    const bool is_diagnosis =
        std::ranges::any_of(std::array{"gradient/", "weight/", "activation/", "update/", "noise/"},
                            [&](const char* group) { return key.starts_with(group); });
    if (!is_diagnosis || (!without.empty() && key.starts_with(without))) continue;
    CAPTURE(key);
    const auto number = found.number(key), one = expected.number(key);
    REQUIRE(number);
    const double bound = is_of_bins(key) ? 0.02 : 1e-9;
    CHECK(std::abs(*number - *one) <=
          bound * std::max(std::abs(*one), 1e-6) + (is_of_bins(key) ? 1 : 0));
    ++compared;
  }
  CHECK(compared > 200);
}

}  // namespace

TEST_CASE("diagnostics of any layout are those of one rank") {
  const Workshop w;
  const auto run = [&](int ranks, const std::string& name, const std::string& layout) {
    const ProcessResult result = w.run(
        ranks, {"run.output_dir=" + name, "metrics.diagnostics_interval=3", "training.max_steps=3",
                "eval.interval=null", "eval.max_samples=2", "checkpoint.interval=null",
                "model.num_key_value_heads=1", "parallelism=" + layout});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(result.output.find("3 steps took memory as planned") != std::string::npos);
    return diagnosed(w, name);
  };
  const train::StepRecord one = run(1, "one", "{}");
  int number = 0;
  struct Case {
    int ranks;
    const char* layout;
  };
  for (const Case& c :
       {Case{2, "{dp: 2}"}, Case{2, "{dp: 2, zero: 1}"}, Case{2, "{dp: 2, zero: 3}"},
        Case{2, "{tp: 2}"}, Case{2, "{tp: 2, tp_sequence_parallel: true}"}, Case{2, "{pp: 2}"},
        Case{2, "{sp: 2}"}, Case{4, "{dp: 4, dp_replicate: 2, zero: 2}"},
        Case{8, "{dp: 2, tp: 2, pp: 2, zero: 1}"}}) {
    CAPTURE(c.layout);
    // A part of a step is another one where others share it.
    check_as_one(run(c.ranks, fmt::format("shared-{}", number++), c.layout), one, "noise/");
  }
}

TEST_CASE("diagnostics of experts on several ranks are those of one") {
  const Workshop w;
  const auto run = [&](int ranks, const std::string& name, const std::string& layout) {
    const ProcessResult result = w.run(
        ranks, {"run.output_dir=" + name,
                "model={architecture: mixtral, vocab_size: 300, hidden_size: 16, "
                "num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24, "
                "num_local_experts: 4, max_position_embeddings: 64, initializer_range: 0.2}",
                "metrics.diagnostics_interval=2", "training.max_steps=2", "eval.interval=null",
                "eval.max_samples=2", "checkpoint.interval=null", "parallelism=" + layout});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return diagnosed(w, name);
  };
  const train::StepRecord one = run(1, "one", "{}");
  check_as_one(run(2, "ep", "{dp: 2, ep: 2}"), one, "noise/");
  check_as_one(run(4, "ep-zero", "{dp: 4, ep: 2, zero: 1}"), one, "noise/");
}

TEST_CASE(
    "samples that are alike have no noise, whoever has which and whatever was summed so far") {
  const Workshop w;
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("{:06}{}", i, std::string(1018, 'a'));
  write_file_atomic(w.scratch / "text.txt", text);
  const auto run = [&](int ranks, const std::string& name, const std::string& layout) {
    const ProcessResult result =
        w.run(ranks, {"run.output_dir=" + name, "metrics.diagnostics_interval=1",
                      "training.max_steps=1", "training.global_batch_size=8", "eval.interval=null",
                      "eval.max_samples=2", "checkpoint.interval=null", "parallelism=" + layout});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return diagnosed(w, name);
  };
  int number = 0;
  struct Case {
    int ranks;
    const char* layout;
  };
  for (const Case& c :
       {Case{1, "{}"}, Case{2, "{dp: 2}"}, Case{2, "{dp: 2, zero: 1}"}, Case{2, "{dp: 2, zero: 2}"},
        Case{4, "{dp: 4, zero: 3, dp_replicate: 2}"}, Case{2, "{tp: 2}"}}) {
    CAPTURE(c.layout);
    const train::StepRecord record = run(c.ranks, fmt::format("alike-{}", number++), c.layout);
    const double squared = record.number("noise/squared_gradient").value();
    CHECK(squared > 0);
    CHECK(std::abs(record.number("noise/variance").value()) <= 1e-9 * squared);
  }
  CHECK(run(2, "pipeline", "{pp: 2}").find("noise/variance") == nullptr);
}

}  // namespace llmtrain::test
