#include "lib/train/starts.hpp"

#include <map>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_requests.hpp"
#include "lib/train/run_status.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

Start start(std::string job, std::int64_t restarts, std::optional<std::int64_t> step) {
  return {.time = 1.5,
          .host = "n1",
          .pid = 7,
          .ranks = 4,
          .job = std::move(job),
          .restarts = restarts,
          .step = step,
          .lost_steps = 2,
          .prepared_bytes = 10};
}

}  // namespace

TEST_CASE("starts are read as they were written; a line that was not finished is none") {
  const test::TempDir scratch;
  CHECK(read_starts(scratch.path()).empty());
  const std::vector<Start> starts{start("", 0, {}), start("12", 0, {}), start("12", 1, 40)};
  for (const Start& one : starts) append_start(scratch.path(), one);
  CHECK(read_starts(scratch.path()) == starts);
  const auto file = scratch / "starts.jsonl";
  write_file_atomic(file, read_file(file) + "{\"time\":1.5,\"host\"");
  CHECK(read_starts(scratch.path()) == starts);
  append_start(scratch.path(), start("12", 2, 40));
  CHECK(read_starts(scratch.path()).size() == 4);
  const std::string line = to_line(start("12", 2, 40));
  write_file_atomic(file, line.substr(0, line.find(",\"prepared_bytes\"")) + "}\n");
  CHECK(read_starts(scratch.path()).at(0).prepared_bytes == 0);  // of an earlier version
  write_file_atomic(file, "{\"time\":1}\n");
  CHECK_THROWS_AS(read_starts(scratch.path()), DataError);
}

TEST_CASE("a start that is taken back leaves those before it") {
  const test::TempDir scratch;
  append_start(scratch.path(), start("", 0, {}));
  append_start(scratch.path(), start("12", 0, 40));
  take_back_start(scratch.path());
  CHECK(read_starts(scratch.path()) == std::vector<Start>{start("", 0, {})});
  take_back_start(scratch.path());
  CHECK(read_starts(scratch.path()).empty());
}

TEST_CASE("a start or a status has integers where it counts") {
  const std::string line = to_line({.host = "n1", .ranks = 2}) + "\n";
  const std::string status = to_json(RunStatus{.ranks = 2});
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != text.npos);
    return text.replace(at, from.size(), to);
  };
  CHECK(parse_starts(with(line, "\"ranks\":2", "\"ranks\":3"), "s").at(0).ranks == 3);
  CHECK(parse_status(with(status, "\"ranks\": 2", "\"ranks\": 3"), "s").ranks == 3);
  for (const char* wrong : {"418446744073709551616", "9223372036854775808", "2.5", "1e30", "-1e30",
                            "true", "\"2\"", "null"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_starts(with(line, "\"ranks\":2", std::string("\"ranks\":") + wrong), "s"),
                    DataError);
    CHECK_THROWS_AS(
        parse_status(with(status, "\"ranks\": 2", std::string("\"ranks\": ") + wrong), "s"),
        DataError);
  }
  CHECK_THROWS_AS(parse_starts(with(line, "\"prepared_bytes\":0", "\"prepared_bytes\":-1"), "s"),
                  DataError);
}

TEST_CASE("restarts of a job that bring no newer checkpoint end it, and nothing else does") {
  std::vector<Start> starts;
  const auto refuses = [&](const Start& now) {
    try {
      check_progress(starts, now, 3);
    } catch (const NoProgressError& error) {
      CHECK(error.exit_code() == ExitCode::no_progress);
      return true;
    }
    starts.push_back(now);
    return false;
  };
  for (int i = 0; i < 4; ++i) CHECK(!refuses(start("11", i, 40)));
  CHECK(!refuses(start("12", 5, 40)));  // those of another job are none of its own
  for (int i = 0; i < 4; ++i) CHECK(!refuses(start("12", i, 40)));
  CHECK(refuses(start("12", 4, 40)));
  CHECK(!refuses(start("12", 4, 41)));                              // it moved
  CHECK(!refuses(start("13", 0, 40)));                              // another job
  for (int i = 0; i < 9; ++i) CHECK(!refuses(start("13", 0, 40)));  // many runs of one job's script
  for (int i = 0; i < 9; ++i) CHECK(!refuses(start("", 0, {})));    // by hand
  for (int i = 0; i < 4; ++i) CHECK(!refuses(start("14", i, {})));
  CHECK(refuses(start("14", 4, {})));
}

TEST_CASE("before the first checkpoint a restart that finds more prepared data has come further") {
  std::vector<Start> starts;
  const auto at = [](std::int64_t restarts, std::optional<std::int64_t> step, std::uint64_t bytes) {
    Start now = start("11", restarts, step);
    now.prepared_bytes = bytes;
    return now;
  };
  for (int i = 0; i < 9; ++i) {
    const Start now = at(i, {}, 100 * static_cast<std::uint64_t>(i));
    CHECK_NOTHROW(check_progress(starts, now, 1));
    starts.push_back(now);
  }
  starts.push_back(at(9, {}, 800));
  CHECK_THROWS_AS(check_progress(starts, at(10, {}, 800), 1), NoProgressError);
  CHECK_NOTHROW(check_progress(starts, at(10, {}, 801), 1));
  // Later a cache that grows may be another run's.
  starts = {at(0, 5, 800), at(1, 5, 900)};
  CHECK_THROWS_AS(check_progress(starts, at(2, 5, 1000), 1), NoProgressError);
}

TEST_CASE("prepared data are the finished files of the cache") {
  const test::TempDir scratch;
  CHECK(prepared_bytes_in(scratch / "none") == 0);
  std::filesystem::create_directories(scratch / "cache" / "tokens-1");
  write_file_atomic(scratch / "cache" / "tokenizer.json", "12345");
  write_file_atomic(scratch / "cache" / "tokens-1" / "shard-0", "1234567");
  write_file_atomic(scratch / "cache" / "tokens-1" / "shard-1.tmp-n1-7", "123");
  CHECK(prepared_bytes_in(scratch / "cache") == 12);
}

TEST_CASE("a job is what Slurm's variables say") {
  std::map<std::string, std::string> variables;
  const auto job = [&](double now = 99) {
    return job_of(
        [&](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        now);
  };
  variables = {{"SLURM_JOB_END_TIME", "100"}, {"SLURM_RESTART_COUNT", "2"}};
  CHECK(job().id.empty());
  CHECK(!job().end);
  variables["SLURM_JOB_ID"] = "17";
  CHECK(job().id == "17");
  CHECK(job().restarts == 2);
  CHECK(job().end == 100.0);
  CHECK(!job().end_is_past);
  CHECK(!job(100).end);  // of the job that this one was submitted in
  CHECK(job(100).end_is_past);
  for (const char* none : {"", "NONE", "-1", "12x"}) {
    variables["SLURM_JOB_END_TIME"] = none;
    CHECK(!job().end);
  }
}

TEST_CASE("a run has to begin its last save twice the longest step and save before the end") {
  Deadline none({.id = "1"}, {});
  CHECK(!none.is_over(1e18));
  Deadline measured({.id = "1", .end = 1000.0}, {});
  CHECK(measured.margin() == 10);
  measured.note_step(3);
  measured.note_step(2);
  measured.note_save(Tier::durable, 20);
  measured.note_save(Tier::durable, 10);
  CHECK(measured.margin() == 56);
  CHECK(!measured.is_over(943.5));
  CHECK(measured.is_over(944));
  Deadline given({.id = "1", .end = 1000.0}, recipe::Duration{5});
  given.note_step(100);
  CHECK(given.margin() == 5);
}

TEST_CASE(
    "before its first durable save a run expects one of 100 MB/s, for a quarter of its time at "
    "most") {
  Deadline first({.id = "1", .end = 1000.0}, {});
  first.expect_save(3'000'000'000, 0);
  CHECK(first.margin() == 10 + 2 * 30);
  first.note_save(Tier::local, 0.1);
  CHECK(first.margin() == 10 + 2 * 30);
  first.note_save(Tier::durable, 4);
  CHECK(first.margin() == 10 + 2 * 4);
  first.expect_save(3'000'000'000, 0);  // it knows better
  CHECK(first.margin() == 10 + 2 * 4);
  Deadline late({.id = "1", .end = 1000.0}, {});
  late.expect_save(3'000'000'000, 920);
  CHECK(late.margin() == 10 + 20);
  late.expect_save(3'000'000'000, 1001);
  CHECK(late.margin() == 10);
}

}  // namespace llmtrain::train
