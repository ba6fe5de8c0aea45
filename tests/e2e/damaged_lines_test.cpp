// Lines of a run's files that are none stop neither its next start nor its end.
#include <fstream>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/run_status.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

/// Makes the n-th line another one, or adds one behind the last.
void damage_line(const fs::path& path, int n) {
  std::string content = fs::exists(path) ? read_file(path) : "";
  std::size_t begin = 0;
  for (; n > 1 && begin < content.size(); --n) begin = content.find('\n', begin) + 1;
  const std::size_t end = std::min(content.find('\n', begin), content.size());
  content.replace(begin, end - begin, "\x1b[2J damaged");
  if (content.back() != '\n') content += '\n';
  write_file_atomic(path, content);
}

}  // namespace

TEST_CASE("damaged lines: a start sets them aside, says so, and goes on") {
  const std::vector<std::string> samples{"eval.sample_prompts=[a]", "eval.sample_tokens=3"};
  const auto with = [&](const std::string& steps) {
    return std::vector<std::string>{samples[0], samples[1], "training.max_steps=" + steps};
  };
  const Workspace whole(kTinyRecipe), here(kTinyRecipe);
  run_well(whole, with("6"));
  run_well(here, with("6"));
  const fs::path run = here.path / "run";
  fs::remove_all(run / "checkpoints" / "step-00000006");
  damage_line(run / "starts.jsonl", 1);
  damage_line(run / "samples.jsonl", 1);
  damage_line(run / "incidents.jsonl", 1);
  damage_line(run / "metrics.jsonl", 1000);
  const auto result = here.run(with("6"));
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(holds(result.output, {"resumed from step 4\n"}));
  CHECK(result.output.find('\x1b') == std::string::npos);
  CHECK(holds(result.output,
              {"warning: run/starts.jsonl:1: not a start of a run; the line is now in "
               "run/starts.jsonl.torn\n",
               "warning: run/samples.jsonl:1: not a sample; the line is now in ",
               "warning: run/incidents.jsonl:1: not a JSON object; ", "warning: run/metrics.jsonl:",
               " bytes, is now in run/metrics.jsonl.torn\n", "report: run/report.html"}));
  CHECK(fingerprint(here.path, 6) == fingerprint(whole.path, 6));
  CHECK(read_file(run / "samples.jsonl.torn") == "\x1b[2J damaged\n");
  const auto again = here.run(with("8"));
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(!holds(again.output, {".torn"}));
}

TEST_CASE("damaged lines: a run that is done ends well without its report") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"training.max_steps=4"});
  damage_line(here.path / "run" / "metrics.jsonl", 2);  // no start looks so far back
  const auto result = here.run({"checkpoint={interval: 100, local: {directory: fast, interval: 1}}",
                                "training.max_steps=8"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(holds(result.output, {"/step-00000007 (",
                              "warning: run/report.html is not written: run/metrics.jsonl:2: "
                              "not a JSON object; a metrics file has one per line; "
                              "`llmtrain report run` writes it once that is mended\n"}));
  CHECK(!holds(result.output, {"report: "}));
  CHECK(fs::is_empty(here.path / "fast"));
  CHECK(!train::recorded_local_checkpoints(here.path / "run" / "checkpoints"));
  const auto status = here.call({"status", "run"});
  CHECK(status.exit_code == 0);
  CHECK(
      holds(status.output, {"run: done, step 8 of 8", "with exit code 0: run/report.html is not"}));
  CHECK(here.call({"report", "run"}).exit_code == 4);
}

}  // namespace llmtrain
