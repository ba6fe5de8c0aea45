// When a local save is due, and whose local checkpoints a directory names.
#include "lib/train/local_checkpoints.hpp"

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/train/loop_options.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

std::vector<std::string> problems_with(const Overrides& overrides) {
  Recipe recipe;
  std::vector<std::string> lines;
  for (const recipe::Issue& issue : recipe::check(
           recipe, {.file = "r.yaml", .text = std::string(kTinyRecipe), .overrides = overrides})) {
    lines.push_back(issue.key_path + ": " + issue.problem);
  }
  return lines;
}

LoopOptions options_with(const Overrides& overrides) {
  Recipe recipe;
  recipe::load(recipe,
               {.file = "r.yaml", .text = std::string(kTinyRecipe), .overrides = overrides});
  return LoopOptions(recipe);
}

}  // namespace

TEST_CASE("a save is local where only a local one is due") {
  const LoopOptions both = options_with(
      {"checkpoint={interval: 10, keep_every: 4, local: {directory: fast, interval: 3}}"});
  std::string saves;
  for (std::int64_t step = 1; step <= 30; ++step) {
    const std::optional<Tier> tier = both.due_save(step, 0, 0);
    saves += !tier ? '.' : *tier == Tier::local ? 'l' : 'D';
  }
  CHECK(saves == "..lD.l.DlD.D..lD.l.Dl..D..lD.D");
  const LoopOptions none = options_with({"checkpoint.interval=10"});
  CHECK(!none.due_save(3, 1e9, 1e9));
}

TEST_CASE("by time a durable save is due since the last durable one, a local since the last") {
  const LoopOptions options =
      options_with({"checkpoint={interval: 60s, local: {directory: fast, interval: 10s}}"});
  CHECK(!options.due_save(7, 9, 9));
  CHECK(options.due_save(7, 59, 10) == Tier::local);
  CHECK(!options.due_save(7, 59, 9));
  CHECK(options.due_save(7, 60, 1) == Tier::durable);
}

TEST_CASE("local saves that would never be made, and keys without a directory, are refused") {
  const auto first = [](const Overrides& overrides) {
    const auto problems = problems_with(overrides);
    return problems.empty() ? "" : problems.front();
  };
  const std::string local = "checkpoint.local.directory=fast";
  CHECK(first({local}) == "");
  CHECK(first({local, "checkpoint.interval=null"}) == "");
  CHECK(first({local, "checkpoint.interval=10s"}) == "");
  CHECK(first({local, "checkpoint.local.interval=499"}) == "");
  CHECK(first({local, "checkpoint.local.interval=500"}) ==
        "checkpoint.local.interval: 500 is no smaller than checkpoint.interval 500: nothing would "
        "be saved there");
  CHECK(first({local, "checkpoint.interval=10s", "checkpoint.local.interval=20s"})
            .starts_with("checkpoint.local.interval: 20s is no smaller"));
  CHECK(first({local, "checkpoint.keep_every=25"})
            .starts_with("checkpoint.local.interval: its steps are multiples of "
                         "checkpoint.keep_every 25"));
  CHECK(first({local, "checkpoint.keep_every=20"}) == "");
  CHECK(first({local, "checkpoint.local.keep_latest=1"}) != "");
  for (const char* key : {"interval=7", "keep_latest=3"}) {
    CHECK(first({std::string("checkpoint.local.") + key})
              .ends_with(": does nothing without checkpoint.local.directory"));
  }
  // A way back needs somewhere to go.
  CHECK(first({"resilience.on_non_finite=rollback", "checkpoint.interval=null"}) != "");
  CHECK(first({"resilience.on_non_finite=rollback", "checkpoint.interval=null", local}) == "");
}

TEST_CASE("a record names a run's own directory, and none after it was copied, cut or forgotten") {
  const test::TempDir place;
  const fs::path durable = place / "run/checkpoints", fast = place / "fast";
  fs::create_directories(durable);
  CHECK(!recorded_local_checkpoints(durable));

  const fs::path own = choose_local_checkpoints(durable, fast);
  CHECK(own.parent_path() == fast);
  CHECK(choose_local_checkpoints(durable, fast) != own);  // not recorded yet
  record_local_checkpoints(durable, own);
  CHECK(recorded_local_checkpoints(durable) == own);
  CHECK(choose_local_checkpoints(durable, fast) != own);  // it is not there
  fs::create_directories(own);
  CHECK(choose_local_checkpoints(durable, fast) == own);
  CHECK(choose_local_checkpoints(durable, (fast / "").string()) == own);
  CHECK(choose_local_checkpoints(durable, place / "other").parent_path() == place / "other");

  fs::create_directories(place / "copy");
  fs::copy(durable, place / "copy/checkpoints", fs::copy_options::recursive);
  CHECK(!recorded_local_checkpoints(place / "copy/checkpoints"));
  fs::rename(place / "run", place / "moved");
  CHECK(!recorded_local_checkpoints(place / "moved/checkpoints"));
  fs::rename(place / "copy", place / "run");
  CHECK(!recorded_local_checkpoints(durable));  // another directory of the same name

  record_local_checkpoints(durable, own);
  const std::string record = read_file(durable / "local.json");
  for (std::size_t size = 0; size + 1 < record.size(); ++size) {
    CAPTURE(size);
    write_file_atomic(durable / "local.json", record.substr(0, size));
    CHECK(!recorded_local_checkpoints(durable));
  }
  for (const fs::path& other : {fast / ".", fast / "..", fast / "others", fs::path("")}) {
    CAPTURE(other);
    record_local_checkpoints(durable, other);
    CHECK(!recorded_local_checkpoints(durable));
  }
  record_local_checkpoints(durable, own);
  forget_local_checkpoints(durable);
  CHECK(!recorded_local_checkpoints(durable));
  CHECK_NOTHROW(forget_local_checkpoints(durable));
}

TEST_CASE("local checkpoints have no place in the run's own directory, by whatever name") {
  const test::TempDir place;
  const fs::path durable = place / "run/checkpoints";
  fs::create_directories(durable);
  fs::create_directory_symlink(place / "run", place / "link");
  for (const fs::path& local :
       {durable, place / "run", place / "run/fast/", place / "link/fast", durable / "../x"}) {
    CAPTURE(local);
    CHECK_THROWS_AS(choose_local_checkpoints(durable, local), RecipeError);
  }
  CHECK_NOTHROW(choose_local_checkpoints(durable, place / "run2"));
  CHECK_NOTHROW(choose_local_checkpoints(durable, place.path()));
}

}  // namespace llmtrain::train
