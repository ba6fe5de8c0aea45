// A disk that is really full: a small one of memory, mounted where the run's directory is. A test
// of its own for ctest (--no-skip), which tells where no process may mount.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/reliability/job.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

// Its words are the run's command. "0" starts a run on a disk of those `limits`, and "1" the next
// one there; "2" is that of a run whose disk has grown. What is there at the end is what stays.
constexpr const char* kScript = R"(
set -e
limits="$1" first="$2" environment="$3"
shift 3
cp -a run kept
mount -t tmpfs -o "$limits" none run
cp -a kept/. run/
start() { local code=0; "${@:2}" || code=$?; echo "start $1 ended with $code"; }
[ "$first" = none ] || start 0 env $environment "$first" "$@"
start 1 "$LLMTRAIN" "$@"
mount -o remount,size=1G,nr_inodes=100k run
start 2 "$LLMTRAIN" "$@"
rm -rf kept
cp -a run kept
umount run
rm -rf run
mv kept run
)";

/// What a directory tree takes of a disk.
struct Room {
  std::uintmax_t bytes = 0, files = 0;

  explicit Room(const fs::path& directory) {
    constexpr std::uintmax_t kPage = 4096;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      bytes += entry.is_regular_file() ? (entry.file_size() + kPage - 1) / kPage * kPage : kPage;
      ++files;
    }
  }
};

/// What begins a command that may mount; empty where none may.
std::vector<std::string> with_mounts() {
  for (std::vector<std::string> command :
       {std::vector<std::string>{"/usr/bin/env", "unshare", "--mount"},
        {"/usr/bin/env", "unshare", "--user", "--map-root-user", "--mount"}}) {
    std::vector<std::string> probe = command;
    probe.insert(probe.end(), {"mount", "-t", "tmpfs", "none", "/mnt"});
    if (run_process(probe, "/", {}).exit_code == 0) return command;
  }
  MESSAGE("skipped: this system lets no process have mounts of its own");
  return {};
}

/// Where the checkpoint of step 2 is there is room for one more and a third: that of step 4 fits,
/// that of step 6 does not.
std::string limited_bytes(const Job& job) {
  const Room run(job.directory() / "run"), checkpoint(job.checkpoints() / "step-00000002");
  return fmt::format("size={}", run.bytes + checkpoint.bytes * 4 / 3);
}
/// The same of files, of which nobody asks how many are left; a run makes a few itself.
std::string limited_files(const Job& job) {
  const Room run(job.directory() / "run"), checkpoint(job.checkpoints() / "step-00000002");
  return fmt::format("nr_inodes={}", run.files + checkpoint.files * 4 / 3 + 8);
}

/// `command` begins with with_mounts(). `first`, if not "none", is an executable that runs before,
/// in this `environment`.
ProcessResult run_on_small_disk(std::vector<std::string> command, const Job& job,
                                const Layout& layout, const std::string& limits,
                                const std::string& first = "none",
                                const std::string& environment = "") {
  command.insert(command.end(),
                 {"env", std::string("LLMTRAIN=") + LLMTRAIN_EXECUTABLE, "bash", "-c", kScript,
                  "bash", limits, first, environment, "run", "recipe.yaml"});
  const Overrides overrides = layout.overrides();
  command.insert(command.end(), overrides.begin(), overrides.end());
  return run_process(command, job.directory().string(), {.limit_seconds = 90});
}

bool says(const ProcessResult& result, const std::string& text) {
  return result.output.find(text) != std::string::npos;
}

}  // namespace

TEST_SUITE_BEGIN("full disk" * doctest::skip());

TEST_CASE("a disk that gets full fails that save alone; with room the run goes on to its end") {
  const std::vector<std::string> mounts = with_mounts();
  if (mounts.empty()) return;
  struct Limit {
    std::string (*of)(const Job&);
    const char* reason;
  };
  for (const Limit& limit : {Limit{limited_bytes, "the next checkpoint needs"},
                             Limit{limited_files, "No space left on device"}}) {
    for (const bool async : {false, true}) {
      const Layout layout{1, async};
      CAPTURE(layout.name());
      const Job job(layout, &prepared_job(layout, 2));
      const ProcessResult result = run_on_small_disk(mounts, job, layout, limit.of(job));
      INFO(result.output);
      REQUIRE(result.exit_code == 0);
      CHECK(says(result, "start 1 ended with 7"));
      CHECK(says(result, limit.reason));
      CHECK(says(result, "resumed from step 4"));
      CHECK(says(result, "start 2 ended with 0"));
      CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
    }
  }
}

TEST_CASE("what a killed save has left on a full disk makes room for the next start") {
  const std::vector<std::string> mounts = with_mounts();
  if (mounts.empty()) return;
  const Layout layout{1};
  const Job job(layout, &prepared_job(layout, 2));
  const TempDir pids;
  const std::string killed =
      fmt::format("FAILPOINT=manifest.create FAILPOINT_SAVE=1 FAILPOINT_VICTIM=0 FAILPOINT_PIDS={}",
                  pids.path().string());
  const ProcessResult result =
      run_on_small_disk(mounts, job, layout, limited_bytes(job), LLMTRAIN_FAILPOINTS, killed);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(says(result, "start 0 ended with 137"));
  CHECK(says(result, "resumed from step 2"));
  CHECK(says(result, "saved run/checkpoints/step-00000004"));
  CHECK(says(result, "start 1 ended with 7"));
  CHECK(says(result, "resumed from step 4"));
  CHECK(says(result, "start 2 ended with 0"));
  CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
}

TEST_CASE("fast storage that gets full is told of, and the run saves durably from then on") {
  const std::vector<std::string> mounts = with_mounts();
  if (mounts.empty()) return;
  constexpr const char* kFastDisk = R"(mkdir fast; mount -t tmpfs -o "$1" none fast; shift; "$@")";
  const Room checkpoint(prepared_job({}, 2).checkpoints() / "step-00000002");
  for (const bool async : {false, true}) {
    const Layout layout{1, async};
    CAPTURE(layout.name());
    const Job job(layout, &prepared_job(layout, 0));
    std::vector<std::string> command = mounts;
    // For one checkpoint and a half, of which the run would keep two.
    command.insert(command.end(), {"bash", "-c", kFastDisk, "bash",
                                   fmt::format("size={}", checkpoint.bytes * 3 / 2),
                                   LLMTRAIN_EXECUTABLE, "run", "recipe.yaml"});
    for (const std::string& setting : layout.overrides()) command.push_back(setting);
    command.insert(command.end(),
                   {"checkpoint.local={directory: fast, interval: 1}", "checkpoint.interval=6"});
    const ProcessResult result =
        run_process(command, job.directory().string(), {.limit_seconds = 90});
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    CHECK(says(result, "the run will have up to 3 checkpoints"));
    CHECK(says(result, "when it is full the run saves in run alone"));
    CHECK(says(result, "/step-00000001 ("));
    CHECK(says(result, "the next checkpoint needs"));
    CHECK(says(result, "The run goes on, and saves in run/checkpoints alone"));
    CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
  }
}

namespace {

/// `layout`'s job on fast storage of its own, which gets full behind the second save there: the
/// third one is killed. Then `rest` runs, in which `run` is the command of a start
/// and `killed` one whose first save is killed.
ProcessResult run_with_full_fast_disk(std::vector<std::string> command, const Job& job,
                                      const Layout& layout, const std::string& rest) {
  constexpr const char* kBegin = R"(
mkdir fast; mount -t tmpfs -o "$1" none fast; pids="$2"; settings=("${@:3}")
killed_at() { env FAILPOINT=manifest.create FAILPOINT_SAVE="$1" FAILPOINT_VICTIM=0 FAILPOINT_PIDS="$pids" \
  "$FAILPOINTS" run recipe.yaml "${settings[@]}" "${@:2}"; echo "ended with $?"; }
killed() { killed_at 1 "$@"; }
run() { "$LLMTRAIN" run recipe.yaml "${settings[@]}" "$@"; }
killed_at 3
dd if=/dev/zero of=fast/filler bs=4k 2>/dev/null
)";
  const Room checkpoint(prepared_job({}, 2).checkpoints() / "step-00000002");
  const TempDir pids;
  command.insert(command.end(),
                 {"env", std::string("LLMTRAIN=") + LLMTRAIN_EXECUTABLE,
                  std::string("FAILPOINTS=") + LLMTRAIN_FAILPOINTS, "bash", "-c", kBegin + rest,
                  "bash", fmt::format("size={}", checkpoint.bytes * 5), pids.path().string()});
  for (const std::string& setting : layout.overrides()) command.push_back(setting);
  command.insert(command.end(),
                 {"checkpoint.local={directory: fast, interval: 1}", "checkpoint.interval=null"});
  return run_process(command, job.directory().string(), {.limit_seconds = 90});
}

}  // namespace

TEST_CASE("a run whose fast storage is full goes on from what is there, and saves durably") {
  const std::vector<std::string> mounts = with_mounts();
  if (mounts.empty()) return;
  const Layout layout{1};
  const Job job(layout, &prepared_job(layout, 0));
  const ProcessResult result = run_with_full_fast_disk(mounts, job, layout, "run");
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(says(result, "ended with 137"));
  CHECK(says(result, "No space left on device"));
  CHECK(says(result, "The run goes on, and saves in run/checkpoints alone"));
  CHECK(says(result, "resumed from step 2, saved in "));
  for (const int step : {3, 4, 5, 6}) {
    CHECK(says(result, fmt::format("saved run/checkpoints/step-{:08}", step)));
  }
  CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
}

TEST_CASE("what is on full fast storage is not met again behind a way back") {
  const std::vector<std::string> mounts = with_mounts();
  if (mounts.empty()) return;
  const Layout layout{1};
  const Job job(layout, &prepared_job(layout, 2));
  const ProcessResult result = run_with_full_fast_disk(
      mounts, job, layout, "killed checkpoint.resume=2; echo the last start; run");
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(says(result, "/step-00000004 ("));
  CHECK(says(result, "went back to step 2: newer checkpoints"));
  const std::size_t last = result.output.find("the last start");
  CHECK(result.output.find("resumed from step 2\n", last) < result.output.size());
  CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
}

TEST_SUITE_END();

}  // namespace llmtrain::test
