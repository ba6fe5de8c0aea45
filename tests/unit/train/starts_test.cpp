#include "lib/train/starts.hpp"

#include <map>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_requests.hpp"
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
          .lost_steps = 2};
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
  write_file_atomic(file, "{\"time\":1}\n");
  CHECK_THROWS_AS(read_starts(scratch.path()), DataError);
}

TEST_CASE("restarts of a job that bring no newer checkpoint end it, and nothing else does") {
  const test::TempDir scratch;
  const auto refuses = [&](const std::string& job, std::int64_t restarts,
                           std::optional<std::int64_t> step) {
    try {
      check_progress(scratch.path(), {.id = job, .restarts = restarts}, step, 3);
    } catch (const NoProgressError& error) {
      CHECK(error.exit_code() == ExitCode::no_progress);
      return true;
    }
    append_start(scratch.path(), start(job, restarts, step));
    return false;
  };
  for (int i = 0; i < 4; ++i) CHECK(!refuses("11", i, 40));
  CHECK(!refuses("12", 5, 40));  // those of another job are none of its own
  for (int i = 0; i < 4; ++i) CHECK(!refuses("12", i, 40));
  CHECK(refuses("12", 4, 40));
  CHECK(!refuses("12", 4, 41));                              // it moved
  CHECK(!refuses("13", 0, 40));                              // another job
  for (int i = 0; i < 9; ++i) CHECK(!refuses("13", 0, 40));  // many runs of one job's script
  for (int i = 0; i < 9; ++i) CHECK(!refuses("", 0, {}));    // by hand
  for (int i = 0; i < 4; ++i) CHECK(!refuses("14", i, {}));
  CHECK(refuses("14", 4, {}));
}

TEST_CASE("a job is what Slurm's variables say") {
  std::map<std::string, std::string> variables;
  const auto job = [&] {
    return job_of([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  variables = {{"SLURM_JOB_END_TIME", "100"}, {"SLURM_RESTART_COUNT", "2"}};
  CHECK(job().id.empty());
  CHECK(!job().end);
  variables["SLURM_JOB_ID"] = "17";
  CHECK(job().id == "17");
  CHECK(job().restarts == 2);
  CHECK(job().end == 100.0);
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
  measured.note_save(20);
  measured.note_save(10);
  CHECK(measured.margin() == 56);
  CHECK(!measured.is_over(943.5));
  CHECK(measured.is_over(944));
  Deadline given({.id = "1", .end = 1000.0}, recipe::Duration{5});
  given.note_step(100);
  CHECK(given.margin() == 5);
}

}  // namespace llmtrain::train
