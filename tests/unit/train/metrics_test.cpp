#include "lib/train/metrics.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

StepRecord record_of(std::int64_t step, double loss) {
  StepRecord record{.step = step, .fields = {}};
  record.set(metric::kLoss, loss);
  return record;
}

void append_bytes(const std::filesystem::path& path, std::string_view bytes) {
  File::open_append(path).write(bytes);
}

}  // namespace

TEST_CASE("a metrics line keeps key order, types and the shortest digits that round-trip") {
  StepRecord record{.step = 7, .fields = {}};
  record.set("train/loss", 0.1);
  record.set("train/tokens", std::int64_t{4096});
  record.set("optimizer/lr", 3e-4);
  record.set("train/grad_norm", 2.0);
  record.set("run/note", "say \"hi\"\n</script>\xff");
  record.set("train/loss", 0.30000000000000004);  // replaces in place

  CHECK(to_line(record) ==
        "{\"step\":7,\"train/loss\":0.30000000000000004,\"train/tokens\":4096,"
        "\"optimizer/lr\":3e-04,\"train/grad_norm\":2.0,"
        "\"run/note\":\"say \\\"hi\\\"\\n</script>\xEF\xBF\xBD\"}");
}

TEST_CASE("metrics read back as they were written, bit for bit") {
  StepRecord record{.step = 3, .fields = {}};
  for (const double value : {1.0 / 3, 1e300, 5e-324, -0.0, 1e15, 123456789.0}) {
    record.set("x/" + std::to_string(record.fields.size()), value);
  }
  record.set("x/integer", std::numeric_limits<std::int64_t>::min());
  record.set("x/text", "a\tb");

  const std::vector<StepRecord> read = parse_metrics(to_line(record) + "\n", "m");

  REQUIRE(read.size() == 1);
  CHECK(read[0] == record);
  CHECK(std::signbit(*read[0].number("x/3")));
}

TEST_CASE("values that are not finite survive the file") {
  StepRecord record{.step = 1, .fields = {}};
  record.set("a/nan", std::nan(""));
  record.set("a/low", -std::numeric_limits<double>::infinity());

  const StepRecord read = parse_metrics(to_line(record) + "\n", "m").at(0);

  CHECK(std::isnan(*read.number("a/nan")));
  CHECK(*read.number("a/low") == -std::numeric_limits<double>::infinity());
  CHECK_FALSE(read.number("a/absent").has_value());
}

TEST_CASE("the reproducible line leaves out what depends on clock and machine state") {
  StepRecord record = record_of(5, 1.5);
  record.set("time/step_seconds", 0.25);
  record.set("host/rss_bytes", std::int64_t{1});
  record.set("memory/peak_bytes", std::int64_t{9});

  CHECK(reproducible_line(record) == "{\"step\":5,\"train/loss\":1.5,\"memory/peak_bytes\":9}");
}

TEST_CASE("the last step of a file is that of its last record, whatever is torn behind it") {
  const test::TempDir dir;
  CHECK(last_recorded_step(dir / "none.jsonl") == 0);
  const auto path = dir / "metrics.jsonl";
  write_file_atomic(path, "");
  CHECK(last_recorded_step(path) == 0);
  const std::string lines = to_line(record_of(7, 1.5)) + "\n" + to_line(record_of(9, 1.25)) + "\n";
  for (const char* torn : {"", "{\"step\":11", "{\"step\":11\n", "\n"}) {
    write_file_atomic(path, lines + torn);
    CHECK(last_recorded_step(path) == 9);
  }
}

TEST_CASE("resuming at a step drops its records and later ones, which come again") {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path, std::nullopt);
    for (std::int64_t step = 1; step <= 9; ++step) writer.write(record_of(step, 10.0 - step));
    append_bytes(path, "{\"step\":10,\"train/lo");  // killed in the middle of a write
  }

  {
    MetricsWriter writer(path, 6);
    for (std::int64_t step = 6; step <= 12; ++step) writer.write(record_of(step, 10.0 - step));
  }

  const std::vector<StepRecord> records = read_metrics(path);
  REQUIRE(records.size() == 12);
  for (std::int64_t step = 1; step <= 12; ++step) {
    CHECK(records[static_cast<std::size_t>(step - 1)] == record_of(step, 10.0 - step));
  }
}

TEST_CASE("resuming leaves a file alone whose records all belong to the past") {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "metrics.jsonl";
  MetricsWriter(path, std::nullopt).write(record_of(2, 1.0));
  const auto written = std::filesystem::last_write_time(path);

  MetricsWriter(path, 3);

  CHECK(std::filesystem::last_write_time(path) == written);
  CHECK(read_metrics(path).size() == 1);
  MetricsWriter(dir / "new.jsonl", 2).write(record_of(2, 1.0));  // the old file may be gone
  CHECK(read_metrics(dir / "new.jsonl").size() == 1);
}

TEST_CASE("a run that starts anew empties the file, also the record of step 0") {
  const test::TempDir dir;
  MetricsWriter(dir / "m", std::nullopt).write(record_of(0, 1.0));

  MetricsWriter(dir / "m", std::nullopt);

  CHECK(read_metrics(dir / "m").empty());
}

TEST_CASE("a torn last line is tolerated, any other bad line is named") {
  CHECK(parse_metrics("{\"step\":1}\n{\"step\":2", "m").size() == 1);
  CHECK(parse_metrics("", "m").empty());

  for (const char* bad :
       {"{\"step\":1}\n{\"step\":2\n{\"step\":3}\n", "{\"step\":1}\n\n", "{\"step\":1}\n[]\n",
        "{\"step\":1}\n{\"step\":1.5}\n", "{\"step\":1}\n{\"step\":2,\"a\":[1]}\n",
        "{\"step\":1}\n{}\n", "{\"step\":1}\n{\"step\":-2}\n"}) {
    CAPTURE(bad);
    std::string message;
    try {
      parse_metrics(bad, "m.jsonl");
    } catch (const DataError& error) {
      message = error.what();
    }
    CHECK(message.starts_with("m.jsonl:2: "));
  }
}

TEST_CASE("what a loss of power left of lines goes beside the file, and nothing is lost") {
  const test::TempDir dir;
  const std::filesystem::path path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path, std::nullopt);
    for (std::int64_t step = 1; step <= 3; ++step) writer.write(record_of(step, 10.0 - step));
  }
  const std::string torn = std::string(5, '\0') + "ss\":1}\n" + to_line(record_of(5, 2)) + "\n";
  append_bytes(path, torn);

  MetricsWriter(path, 4).write(record_of(4, 6.0));

  const std::vector<StepRecord> records = read_metrics(path);
  REQUIRE(records.size() == 4);
  CHECK(records[2] == record_of(3, 7.0));
  CHECK(records[3] == record_of(4, 6.0));
  CHECK(read_file(dir / "metrics.jsonl.torn") == torn);
}

TEST_CASE("no line of a metrics file stops a start, and the first that is none is named") {
  const test::TempDir dir;
  log::open_file(dir / "log");
  append_bytes(dir / "notes", "my notes\nof last week\n");
  const std::string records = to_line(record_of(1, 2.0)) + "\n" + to_line(record_of(2, 1.0)) + "\n";
  append_bytes(dir / "records", records + "{}\n" + to_line(record_of(4, 1.0)) + "\n");

  MetricsWriter(dir / "notes", 3);
  MetricsWriter(dir / "records", 3);

  CHECK(read_file(dir / "notes").empty());
  CHECK(read_file(dir / "notes.torn") == "my notes\nof last week\n");
  CHECK(read_file(dir / "records") == records);
  const std::string said = read_file(dir / "log");
  CAPTURE(said);
  CHECK(said.find("notes:1: not a JSON object") != std::string::npos);
  CHECK(said.find("records:3: no integer \"step\" in this record; it and what follows, ") !=
        std::string::npos);
}

TEST_CASE("values of a kind that this version does not know are left out where somebody asks") {
  const std::string content = "{\"step\":1,\"a/list\":[1],\"a/number\":2.0,\"a/flag\":true}\n";
  CHECK_THROWS_AS(parse_metrics(content, "m"), DataError);
  std::set<std::string> unknown;
  const StepRecord record = parse_metrics(content, "m", &unknown).at(0);
  CHECK(unknown == std::set<std::string>{"a/flag", "a/list"});
  CHECK(record == StepRecord{.step = 1, .fields = {{"a/number", 2.0}}});
  const test::TempDir dir;
  append_bytes(dir / "m", content);
  MetricsWriter(dir / "m", 2);  // a run that goes on with an earlier version
  CHECK(read_file(dir / "m") == content);
}

}  // namespace llmtrain::train
