// data.cleaning from the recipe to the run's directory.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/data/cleaning_report.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

// 60 documents; documents 30 to 59 are those before, 50 to 59 with another last word.
void write_documents(const Workspace& here) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (int word = 0; word < 80; ++word) {
      text += fmt::format("word{}x{} ", i % 30, word * word % 97);
    }
    lines += fmt::format("{{\"text\":\"{}{}\"}}\n", text, i < 50 ? "" : "else");
  }
  here.write("copies.jsonl", lines);
}

const std::vector<std::string> kCleaning{
    "data.sources=[{path: copies.jsonl}]", "data.cleaning.deduplication.exact=true",
    "data.cleaning.deduplication.near={threshold: 0.8}", "data.cleaning.filters.min_words=50"};

std::vector<std::string> with(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kCleaning.begin(), kCleaning.end());
  return arguments;
}

}  // namespace

TEST_CASE("a cleaned run says what it dropped, and keeps what is held out") {
  const Workspace here(kTinyRecipe);
  write_documents(here);
  const auto first = here.run(kCleaning);
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  CHECK(holds(first.output, {"cleaning 1 files (not done yet)", "training documents stay",
                             "exact_duplicate", "near_duplicate_of_held_out"}));
  const auto parsed =
      data::CleaningReport::from_json(read_file(here.path / "run" / "cleaning.json"), "report");
  const data::CleaningReport& report = parsed.report;
  CHECK(report.documents + report.held_out_documents == 60);
  const std::uint64_t held_out_copies =
      report.held_out_exact_duplicates + report.held_out_near_duplicates;
  CHECK(report.documents - report.dropped_documents() + report.held_out_documents -
            held_out_copies ==
        30);

  for (const char* verb : {"prepare", "inspect"}) {
    const auto shown = here.call(with({"data", verb, "recipe.yaml"}));
    INFO(shown.output);
    CHECK(shown.exit_code == 0);
    CHECK(holds(shown.output, {report.summary()}));
    CHECK(!holds(shown.output, {"not done yet"}));
  }
  CHECK(here.call(with({"data", "held-out", "recipe.yaml"})).output ==
        here.call({"data", "held-out", "recipe.yaml", kCleaning[0]}).output);
}

TEST_CASE("cleaning that leaves no training document ends with its reasons") {
  const Workspace here(kTinyRecipe);
  write_documents(here);
  const auto result = here.call(
      with({"data", "prepare", "recipe.yaml", "data.cleaning.filters.min_characters=1e6"}));
  INFO(result.output);
  CHECK(result.exit_code == static_cast<int>(ExitCode::invalid_data));
  CHECK(holds(result.output, {"data.cleaning leaves no document to train on (min_characters"}));
  const auto issue =
      here.call({"check", "recipe.yaml", "data.cleaning.deduplication.normalize=true",
                 "data.cleaning.filters.min_words=5", "data.cleaning.filters.max_words=4"});
  CHECK(issue.exit_code == static_cast<int>(ExitCode::recipe));
  CHECK(holds(issue.output, {"does nothing without exact", "is below min_words 5"}));
}

}  // namespace llmtrain
