// Weighted sources from the recipe to the records, and across a resume.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/train/corpus.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

// Three sources in two stages; the second source ends within the run. Sources by absolute paths, so
// that the test reads them too.
struct Mixed {
  Workspace here{kTinyRecipe};
  std::vector<std::string> overrides;

  Mixed() {
    const std::string text = read_file(here.path / "text.txt");
    here.write("b.txt", "b " + text + "\n\nb " + text + "\n\nb " + text);
    std::string sums;
    for (int i = 0; i < 40; ++i) {
      sums += fmt::format("{{\"p\":\"{} and {} make \",\"c\":\"{}\"}}\n", i, 2 * i, 3 * i);
    }
    here.write("c.jsonl", sums);
    const std::string root = here.path.string();
    overrides = {
        "data.sources=[{path: " + root +
            "/text.txt, max_document_bytes: 1024, weight: 2, name: words}, {path: " + root +
            "/b.txt, max_document_bytes: 1024, weight: 1, max_epochs: 0.02}, {path: " + root +
            "/c.jsonl, prompt_key: p, completion_key: c, weight: 1}]",
        "data.stages=[{start: 8, weights: [0, 1, 3]}, {start: 960 tok, weights: [1, 1, 1]}]",
        "data.eval_modulus=2",
        "data.cache_dir=" + (here.path / "cache").string(),
        "training.max_steps=20",
        "training.seq_len=16",
        "eval.interval=5"};
  }

  test::ProcessResult run(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return here.run(all);
  }
};

}  // namespace

TEST_CASE("records count the samples of each source of a mixture as its weights ask") {
  const Mixed mixed;
  const auto result = mixed.run();
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  const auto recipe = train::load_recipe(mixed.here.path / "recipe.yaml", mixed.overrides);
  const train::Corpus corpus = train::open_corpus(*recipe);
  const data::MixedStream stream = corpus.stream(recipe->run.seed());
  REQUIRE(corpus.parts.size() == 3);
  // Four samples a step: stages begin at samples 32 and 60.
  const std::uint64_t limit = static_cast<std::uint64_t>(
      0.02 * static_cast<double>(corpus.parts[1].training->sample_count()));
  REQUIRE(limit > 2);
  REQUIRE(limit < 15);  // which it reaches before the third stage
  REQUIRE(corpus.mixture.ends().size() == 1);
  CHECK(corpus.mixture.ends()[0].sample < 60);
  CHECK(corpus.mixture.count(1, 80) == limit);
  CHECK(result.output.find("data 1 ends at sample ") != std::string::npos);
  CHECK(corpus.mixture.count(0, 60) == corpus.mixture.count(0, 32));
  int steps = 0;
  for (const train::StepRecord& record : mixed.here.metrics()) {
    if (const auto loss = record.number("eval/loss")) {
      CHECK(record.number("eval/words/loss"));
      CHECK(record.number("eval/1/bits_per_byte"));
      CHECK(record.number("eval/2/bits_per_byte"));
    }
    if (!record.number("train/loss")) continue;
    ++steps;
    const auto samples = static_cast<std::uint64_t>(4 * record.step);
    CHECK(record.number("data/words/samples") == corpus.mixture.count(0, samples));
    CHECK(record.number("data/1/samples") == corpus.mixture.count(1, samples));
    CHECK(record.number("data/2/samples") == corpus.mixture.count(2, samples));
    CHECK(*record.number("data/words/samples") + *record.number("data/1/samples") +
              *record.number("data/2/samples") ==
          static_cast<double>(samples));
    std::int64_t trained = 0;
    for (std::uint64_t i = samples - 4; i < samples; ++i) {
      data::Sample sample = stream.sample_at(i);
      trained += stream.read(i, sample.view());
    }
    CHECK(record.number("train/trained_share") == static_cast<double>(trained) / 64);
  }
  CHECK(steps == 20);
}

TEST_CASE("a mixture goes on where a resumed run left it") {
  const Mixed whole;
  REQUIRE(whole.run().exit_code == 0);
  for (const int cut : {2, 8, 12, 16}) {
    const Mixed part;
    const auto stopped = part.run({fmt::format("training.max_steps={}", cut)});
    INFO(stopped.output);
    REQUIRE(stopped.exit_code == 0);
    const auto resumed = part.run();
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    for (const char* key : {"data/words/samples", "data/1/samples", "data/2/samples"}) {
      CHECK(part.here.metrics().back().number(key) == whole.here.metrics().back().number(key));
    }
    const auto losses = [&](const Mixed& run) {
      std::vector<double> values;
      for (const auto& record : run.here.metrics()) {
        if (record.step <= cut) continue;
        if (const auto loss = record.number("train/trained_share")) values.push_back(*loss);
      }
      return values;
    };
    CHECK(losses(part) == losses(whole));
  }
  // Other weights are another story.
  auto changed = whole.overrides;
  changed.push_back("data.sources.0.weight=5");
  changed.push_back("training.max_steps=24");
  const auto refused = whole.here.run(changed);
  CHECK(refused.exit_code == 4);
  CHECK(refused.output.find("is not what step 20 was trained on") != std::string::npos);
}

TEST_CASE("a run that is longer than its sources is refused before its first step") {
  const Mixed mixed;
  const auto result = mixed.run(
      {"data.stages=[]", "data.sources.0.max_epochs=0.01", "data.sources.2.max_epochs=0.1"});
  INFO(result.output);
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("all sources end after ") != std::string::npos);
}

TEST_CASE("stages out of order are refused, and one that never begins is said") {
  const Mixed mixed;
  const auto call = [&](const std::string& command, const std::string& stages) {
    std::vector<std::string> arguments{command, "recipe.yaml"};
    arguments.insert(arguments.end(), mixed.overrides.begin(), mixed.overrides.end());
    arguments.push_back("data.stages=" + stages);
    return mixed.here.call(arguments);
  };
  const std::string late =
      "[{start: 8, weights: [1, 1, 1]}, {start: 960 tok, weights: [1, 2, 3]}, "
      "{start: 20, weights: [1, 0, 0]}]";
  for (const std::string command : {"check", "run"}) {
    const auto refused =
        call(command, "[{start: 8, weights: [1, 1, 1]}, {start: 7, weights: [1, 2, 3]}]");
    CHECK(refused.exit_code == 2);
    CHECK(holds(refused.output,
                {"data.stages.1.start: is not behind the start of the stage before it"}));
    const auto warned = call(command, late);
    INFO(warned.output);
    CHECK(warned.exit_code == 0);
    CHECK(holds(warned.output, {"data.stages.2.start: 20 is not before the end of the run, which "
                                "takes 20 steps: the stage never begins"}));
    CHECK(!holds(warned.output, {"data.stages.1.start"}));
  }
}

}  // namespace llmtrain
