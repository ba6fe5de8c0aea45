#include "lib/train/run_requests.hpp"

#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

namespace fs = std::filesystem;
using Kind = Request::Kind;

/// A run of one rank that is asked.
struct AskedRun {
  test::TempDir scratch;
  fs::path control = scratch / "control";
  std::unique_ptr<World> world = World::join({});
  Peers peers{*world, "recipe"};
  std::optional<RunRequests> requests;

  AskedRun() {
    log::open_file(scratch / "log");
    fs::create_directory(control);
  }
  void start() { requests.emplace(peers, scratch.path(), Deadline({}, {})); }
  /// At the next look.
  Kind next() {
    std::this_thread::sleep_for(std::chrono::milliseconds(520));
    return requests->poll().kind;
  }
  /// Nobody may remove it, whatever the rights.
  void put_unremovable(const char* name) const {
    fs::create_directory(control / name);
    write_file_atomic(control / name / "x", "");
  }
  std::string said() const { return read_file(scratch / "log"); }
};

}  // namespace

TEST_CASE("a file that asks is removed, and asks again when it is there again") {
  AskedRun run;
  write_file_atomic(run.control / "stop", "");  // a left-over
  run.start();
  CHECK(!fs::exists(run.control / "stop"));
  CHECK(run.next() == Kind::none);
  for (int i = 0; i < 2; ++i) {
    write_file_atomic(run.control / "save", "");
    CHECK(run.next() == Kind::save);
    CHECK(!fs::exists(run.control / "save"));
    CHECK(run.next() == Kind::none);
  }
  CHECK(run.said().empty());
}

TEST_CASE("a file that asks and cannot be removed is said once, and asks once") {
  AskedRun run;
  run.put_unremovable("stop");
  run.start();
  const std::string of_start = run.said();
  CAPTURE(of_start);
  CHECK(of_start.find((run.control / "stop").string() + ": cannot be removed") !=
        std::string::npos);
  CHECK(of_start.find("Directory not empty") != std::string::npos);
  CHECK(run.next() == Kind::none);  // a left-over
  run.put_unremovable("save");
  CHECK(run.next() == Kind::save);
  CHECK(run.next() == Kind::none);
  const std::string of_save = run.said();
  CAPTURE(of_save);
  CHECK(of_save.find((run.control / "save").string() + ": cannot be removed") != std::string::npos);
  fs::remove(run.control / "save" / "x");  // another content, and then it may be removed
  CHECK(run.next() == Kind::save);
  CHECK(!fs::exists(run.control / "save"));
  CHECK(run.next() == Kind::none);
  CHECK(run.said() == of_save);
}

}  // namespace llmtrain::train
