#include "lib/train/report.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/train/report_data.hpp"
#include "lib/train/report_notes.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

namespace {

constexpr const char* kHostile = "</script><script>alert(\"1\")</script><!-- & 'x' \\u003c \xff";

void write_run(const std::filesystem::path& dir, std::int64_t steps) {
  MetricsWriter writer(dir / "metrics.jsonl", std::nullopt);
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepRecord record{.step = step, .fields = {}};
    record.set(metric::kLoss, 5.0 / static_cast<double>(step));
    record.set(metric::kGradNorm, step == 2 ? std::nan("") : 1.0);
    record.set(metric::kLearningRate, 1e-3);
    record.set(metric::kTokensPerSecond, static_cast<double>(step));
    record.set("memory/params_bytes", std::int64_t{1024} * step);
    if (step % 2 == 0) record.set(metric::kEvalLoss, 6.0 / static_cast<double>(step));
    writer.write(record);
  }
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; ++at) ++found;
  return found;
}

std::string report_of(const test::TempDir& dir) {
  write_report(dir.path(), dir / "report.html");
  return read_file(dir / "report.html");
}

}  // namespace

TEST_CASE("facts and key figures of a run come back from its report") {
  const test::TempDir dir;
  write_run(dir.path(), 10);
  write_file_atomic(dir / "run.json", R"({"name":"tiny","data":{"tokens":12},"cpu":true})");

  const std::string html = report_of(dir);
  const StepRecord facts = read_report_facts(html);

  CHECK(html.find("<h1>tiny</h1>") != std::string::npos);
  CHECK(facts.step == 10);
  CHECK(std::get<std::string>(*facts.find("run/name")) == "tiny");
  CHECK(std::get<std::string>(*facts.find("run/data.tokens")) == "12");
  CHECK(std::get<std::string>(*facts.find("run/cpu")) == "true");
  CHECK(facts.number("summary/first_loss") == 5.0);
  CHECK(facts.number("summary/last_loss") == 0.5);
  CHECK(facts.number("summary/best_eval_loss") == 0.6);
  CHECK(facts.number("summary/tokens_per_second") == 6.0);
  CHECK_FALSE(facts.number("summary/mfu").has_value());
}

TEST_CASE("memory is the largest of all records, whichever start they are of") {
  const test::TempDir dir;
  {
    MetricsWriter writer(dir / "metrics.jsonl", std::nullopt);
    for (const std::int64_t kib : {3, 7, 5}) {
      StepRecord record{.step = 10 - kib, .fields = {}};
      record.set(metric::kLoss, 1.0);
      record.set(metric::kPeakBytes, 1024 * kib);
      record.set("memory/params_bytes", 1024 * kib - 1);
      writer.write(record);
    }
  }
  write_file_atomic(dir / "plan.json", R"({"memory":{"planned":{"params":1}}})");
  CHECK(read_report_facts(report_of(dir)).number("summary/peak_bytes") == 7 * 1024);
  const RunData run = load_run(dir.path());
  REQUIRE(run.memory.size() == 1);
  CHECK(run.memory[0].measured == 7 * 1024u - 1);
}

TEST_CASE("bits per byte are those of the last evaluation, or none") {
  const test::TempDir dir;
  MetricsWriter writer(dir / "metrics.jsonl", std::nullopt);
  const auto evaluate = [&](std::int64_t step, std::optional<double> bits) {
    StepRecord record{.step = step, .fields = {}};
    record.set(metric::kLoss, 1.0);
    record.set(metric::kEvalLoss, 2.0);
    if (bits) record.set(metric::kEvalBitsPerByte, *bits);
    writer.write(record);
    return read_report_facts(report_of(dir)).number("summary/last_bits_per_byte");
  };
  CHECK(evaluate(2, 3.5) == 3.5);
  CHECK_FALSE(evaluate(4, std::nullopt).has_value());
  CHECK(evaluate(6, 2.5) == 2.5);
}

TEST_CASE("hostile strings stay text, in the page and in the embedded data") {
  const test::TempDir dir;
  write_run(dir.path(), 3);
  const std::string quoted = to_line({.step = 3, .fields = {{"text", kHostile}}});
  write_file_atomic(dir / "run.json",
                    to_line({.step = 0, .fields = {{"name", kHostile}, {kHostile, "x"}}}));
  write_file_atomic(dir / "samples.jsonl", quoted + "\n");
  write_file_atomic(dir / "resolved.yaml", kHostile);

  const std::string html = report_of(dir);

  CHECK(count(html, "<script") == 2);  // the data and the pointer's code, both ours
  CHECK(count(html, "</script>") == 2);
  CHECK(count(html, "<!--") == 0);
  CHECK(html.find("alert(\"1\")") == std::string::npos);
  CHECK(html.find('\xff') == std::string::npos);
  const StepRecord facts = read_report_facts(html);
  std::string expected = kHostile;
  expected.replace(expected.find('\xff'), 1, "\xEF\xBF\xBD");
  CHECK(std::get<std::string>(*facts.find("run/name")) == expected);
}

TEST_CASE("the report needs no other file and no network") {
  const test::TempDir dir;
  write_run(dir.path(), 4);

  const std::string html = report_of(dir);

  for (const char* reference : {"http:", "https:", " src=", "href=", "@import", "url("}) {
    CAPTURE(reference);
    CHECK(html.find(reference) == std::string::npos);
  }
  CHECK(html.find("<h1>" + dir.path().filename().string() + "</h1>") != std::string::npos);
  CHECK(html.find("nan") == std::string::npos);  // a value that is not finite is not drawn
}

TEST_CASE("planned and measured bytes stand side by side, differences are named") {
  const test::TempDir dir;
  write_run(dir.path(), 4);
  write_file_atomic(dir / "plan.json",
                    R"({"memory":{"planned":{"params":4096,"grads":2048}},"parameters":1234567,
                        "checkpoint_bytes":3145728})");

  const RunData run = load_run(dir.path());
  const std::string html = report_of(dir);

  REQUIRE(run.memory.size() == 2);
  CHECK(run.memory[0].planned == 4096u);
  CHECK(run.memory[0].measured == 4096u);
  CHECK_FALSE(run.memory[1].measured.has_value());
  CHECK(html.find(">equal<") != std::string::npos);
  CHECK(html.find(">+1.00 KiB<") == std::string::npos);
  write_file_atomic(dir / "plan.json", R"({"memory":{"planned":{"params":3072}}})");
  CHECK(report_of(dir).find(">+1.00 KiB<") != std::string::npos);
  CHECK(html.find(">1,234,567<") != std::string::npos);
  CHECK(html.find(">3.00 MiB<") != std::string::npos);
}

TEST_CASE("unusable input is refused with the file's name") {
  const test::TempDir dir;
  CHECK_THROWS_WITH_AS(load_run(dir.path()), doctest::Contains("no metrics.jsonl"), RecipeError);
  write_run(dir.path(), 2);
  const auto refuses = [&](const char* file, const std::string& content, const char* message) {
    CAPTURE(file);
    write_file_atomic(dir / file, content);
    CHECK_THROWS_WITH_AS(load_run(dir.path()), doctest::Contains(message), DataError);
    std::filesystem::remove(dir / file);
  };
  refuses("run.json", "{\"a\":", "run.json: not JSON");
  refuses("run.json", "[1]", "run.json: a JSON object is expected");
  refuses("run.json", std::string(10000, '[') + std::string(10000, ']'), "nested deeper than");
  refuses("plan.json", R"({"memory":{"planned":{"params":-1}}})", "memory.planned.params");
  refuses("samples.jsonl", "{\"step\":1}\n", "samples.jsonl:1: a sample is");
  refuses("samples.jsonl", "{\"step\":1e300,\"text\":\"x\"}\n", "samples.jsonl:1: no integer");
}

TEST_CASE("what is no whole report is not read as one") {
  const test::TempDir dir;
  write_run(dir.path(), 2);
  const std::string html = report_of(dir);

  CHECK_THROWS_AS(read_report_facts("<html></html>\n"), DataError);
  CHECK_THROWS_AS(read_report_facts(html.substr(0, html.size() - 10)), DataError);
  std::string other_version = html;
  other_version.replace(html.find("\"version\":1"), 11, "\"version\":[]");
  CHECK_THROWS_WITH_AS(read_report_facts(other_version), doctest::Contains("another version"),
                       DataError);
}

TEST_CASE("of several values at one step the last counts, whatever the order of the steps") {
  const std::vector<StepRecord> records = {{.step = 5, .fields = {{"a", 1.0}}},
                                           {.step = 2, .fields = {{"a", 3.0}}},
                                           {.step = 5, .fields = {{"a", 2.0}}}};

  const std::vector<Point> points = series_of(records, "a");

  REQUIRE(points.size() == 2);
  CHECK(points[0].x == 2);
  CHECK(points[1].y == 2.0);
}

TEST_CASE("the text report draws the loss falling and fits 80 columns") {
  const test::TempDir dir;
  write_run(dir.path(), 300);

  const std::string text = text_report(dir.path());

  const std::size_t highest = text.find(" |*\n");  // only the first column reaches the top
  const std::size_t lowest = text.find("oo\n");
  REQUIRE(highest != std::string::npos);
  REQUIRE(lowest != std::string::npos);
  CHECK(highest < lowest);
  CHECK(text.find("300\n") != std::string::npos);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    CHECK(end - at <= 80);
  }
  MetricsWriter(dir / "metrics.jsonl", std::nullopt);
  CHECK(text_report(dir.path()).starts_with("no loss has been recorded yet"));
  CHECK(report_of(dir).ends_with("</html>\n"));
}

TEST_CASE("starts, steps made twice, and what was planned beside what was measured") {
  const test::TempDir dir;
  write_run(dir.path(), 10);
  CHECK(report_of(dir).find("<h2>Starts</h2>") == std::string::npos);
  append_start(dir.path(), {.time = 0, .host = "n1", .ranks = 4});
  append_start(dir.path(),
               {.time = 90'000, .host = "n<2", .job = "17", .step = 6, .lost_steps = 3});
  write_file_atomic(dir / "plan.json",
                    R"({"predicted_tokens_per_second": 3.0, "predicted_step_seconds": 2})");
  const std::string html = report_of(dir);
  CHECK(html.find("<td>1970-01-02 01:00</td><td>n&lt;2</td><td>17</td>") != std::string::npos);
  const StepRecord facts = read_report_facts(html);
  CHECK(facts.number("summary/starts") == 2);
  CHECK(facts.number("summary/lost_steps") == 3);
  // 6 of 3 tokens per second; no step time was measured.
  CHECK(html.find("<td class=\"num\">3</td><td class=\"num\">6</td><td "
                  "class=\"num\">2.000</td>") != std::string::npos);
  CHECK(html.find("step, median") == std::string::npos);
}

TEST_CASE("the text report has the starts of a run that had several, and the steps made twice") {
  const test::TempDir dir;
  write_run(dir.path(), 10);
  append_start(dir.path(), {.time = 0, .host = "n1"});
  CHECK(text_report(dir.path()).find("starts") == std::string::npos);
  append_start(dir.path(), {.time = 90'000, .host = "n2", .step = 6, .lost_steps = 3});
  append_start(dir.path(), {.time = 95'000, .host = "n2", .step = 8, .lost_steps = 1});
  const std::string text = text_report(dir.path());
  CAPTURE(text);
  CHECK(text.find(fmt::format("  {:<28}{:>12}\n", "starts", 3)) != std::string::npos);
  CHECK(text.find(fmt::format("  {:<28}{:>12}\n", "steps made twice", 4)) != std::string::npos);
}

TEST_CASE("both forms of a report say how planned times come to be known") {
  const test::TempDir dir;
  write_run(dir.path(), 10);
  const std::string remedy = "unknown: run `llmtrain doctor` before a start";
  const auto say = [&] {
    const bool page = report_of(dir).find(remedy) != std::string::npos;
    const std::string text = text_report(dir.path());
    CHECK((text.find(remedy + "\n") != std::string::npos) == page);
    return page;
  };
  CHECK_FALSE(say());  // nothing was planned
  write_file_atomic(dir / "plan.json", R"({"parameters": 7})");
  CHECK(say());
  write_file_atomic(dir / "plan.json", R"({"parameters": 7, "predicted_step_seconds": 2.0})");
  CHECK_FALSE(say());
}

TEST_CASE("two runs side by side: their figures, and where their losses part") {
  const test::TempDir a, b;
  write_run(a.path(), 10);
  write_run(b.path(), 10);
  CHECK(compare_runs(a.path(), b.path()).find("losses of 10 steps are equal to the bit") !=
        std::string::npos);
  StepRecord other{.step = 7, .fields = {}};
  other.set(metric::kLoss, 5.0 / 7 + 0.25);
  MetricsWriter(b / "metrics.jsonl", 7).write(other);
  const std::string text = compare_runs(a.path(), b.path());
  CAPTURE(text);
  CHECK(text.find("part at step 7; the largest of 7 differences is 0.25, at step 7") !=
        std::string::npos);
  std::size_t longest = 0;
  for (std::size_t begin = text.find("\n\n"); begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  CHECK(longest <= 80);
  other.set(metric::kLoss, std::nan(""));
  MetricsWriter(b / "metrics.jsonl", 7).write(other);
  const std::string bad = compare_runs(a.path(), b.path());
  CAPTURE(bad);
  CHECK(bad.find("part at step 7\n1 of the differences are not finite\n") != std::string::npos);
  MetricsWriter(a / "metrics.jsonl", 7).write(other);  // NaN, too
  CHECK(compare_runs(a.path(), b.path()).find("losses of 7 steps are equal to the bit") !=
        std::string::npos);
  CHECK_THROWS_AS(compare_runs(a.path(), a / "none"), RecipeError);
}

TEST_CASE("runs of another version are compared in what this one knows, and the rest is named") {
  const test::TempDir a, b;
  for (const test::TempDir* run : {&a, &b}) write_run(run->path(), 4);
  const std::string recipe(kTinyRecipe);
  write_file_atomic(a / "resolved.yaml", recipe + "future: {key: 1}\noptimizer: {lr: fast}\n");
  write_file_atomic(b / "resolved.yaml", recipe + "x: 1\noptimizer: {lr: 0.5}\n");
  File::open_append(b / "metrics.jsonl")
      .write("{\"step\":5,\"train/loss\":1.0,\"new/list\":[1]}\n");
  const std::string text = compare_runs(a.path(), b.path());
  CAPTURE(text);
  CHECK(text.find("losses of 4 steps are equal to the bit") != std::string::npos);
  CHECK(text.find("B: this version does not know metric new/list\n") != std::string::npos);
  CHECK(text.find("the recipes are the same\n") != std::string::npos);
  CHECK(text.find("does not know or refuses them:\n  A: future\n  A: optimizer.lr\n  B: x\n") !=
        std::string::npos);
  write_file_atomic(b / "resolved.yaml", "[");
  CHECK(compare_runs(a.path(), b.path()).find("no recipes compared: ") != std::string::npos);
}

TEST_CASE("steps of which the records are lost are told, and another interval is no loss") {
  const auto gaps = [](const std::vector<std::int64_t>& steps, std::int64_t interval) {
    std::vector<StepRecord> records;
    for (const std::int64_t step : steps) {
      records.push_back({.step = step, .fields = {{std::string(metric::kLoss), 1.0}}});
    }
    records.push_back({.step = 5, .fields = {{std::string(metric::kEvalLoss), 1.0}}});
    return gaps_of(records, interval);
  };
  using Gaps = std::vector<StepGap>;
  CHECK(gaps({}, 1).empty());
  CHECK(gaps({1, 2, 3, 4, 5}, 1).empty());
  CHECK(gaps({1, 2, 4, 5, 6, 4, 9}, 1) == Gaps{{2, 4}, {6, 9}});
  CHECK(gaps({4, 5, 6}, 1) == Gaps{{0, 4}});
  CHECK(gaps({1, 7}, 1) == Gaps{{1, 7}});
  CHECK(gaps({1, 10, 20, 23, 30, 40}, 10).empty());
  CHECK(gaps({1, 10, 20, 40, 50}, 10) == Gaps{{20, 40}});
  CHECK(gaps({1, 10, 20, 30, 40, 50, 60, 61, 62, 63, 64, 65, 66}, 1).empty());
  CHECK(gaps({1, 2, 3, 4, 5, 6, 10, 20, 30, 40}, 10).empty());
  CHECK(gaps({1, 2, 7, 12, 13, 14, 15}, 1) == Gaps{{2, 7}, {7, 12}});

  const test::TempDir dir;
  write_run(dir.path(), 20);
  CHECK(report_of(dir).find("Of the records") == std::string::npos);
  std::string lines = read_file(dir / "metrics.jsonl");
  const std::size_t begin = lines.find("{\"step\":12,");
  lines.erase(begin, lines.find("{\"step\":15,") - begin);
  write_file_atomic(dir / "metrics.jsonl", lines);
  const std::string note = "metrics.jsonl has no training loss between steps 11 and 15";
  CHECK(report_of(dir).find("<li>" + note + "</li>") != std::string::npos);
  CHECK(text_report(dir.path()).find(note + "\n") != std::string::npos);
  CHECK(compare_runs(dir.path(), dir.path()).find("A: " + note + "\n") != std::string::npos);
  // The recipe's interval allows more.
  write_file_atomic(dir / "resolved.yaml", std::string(kTinyRecipe) + "metrics: {interval: 4}\n");
  CHECK(text_report(dir.path()).find(note) == std::string::npos);
}

}  // namespace llmtrain::train
