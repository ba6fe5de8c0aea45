// The ends of runs while a save is written beside them: what is said, and which error remains.
#include "lib/train/saver.hpp"

#include <atomic>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/recipe.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

namespace {

constexpr std::uint64_t kShardBytes = std::uint64_t{1} << 30;

/// A run of one rank with a save under way, whose thread waits in its first fsync until it may
/// fail.
class SavingRun {
 public:
  SavingRun() {
    engine_.initialize();
    log::open_file(scratch_ / "log");
    saver_.save(Tier::durable, {.step = 3}, {.epoch_size = 10});
    while (!waits_) std::this_thread::yield();
  }
  ~SavingRun() { may_fail_ = true; }

  Saver& saver() { return saver_; }
  void let_it_fail() { may_fail_ = true; }
  std::string log_text() const { return read_file(scratch_ / "log"); }
  /// What the save has written, and what it writes from.
  std::string file_text() const {
    for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "checkpoints")) {
      if (entry.is_directory()) return read_file(entry.path() / "shard-0000-0000.safetensors");
    }
    return "";
  }
  std::string_view snapshot() const {
    const auto& view = engine_.snapshot().view();
    return {view.as<char>(), static_cast<std::size_t>(view.bytes())};
  }
  std::uint64_t saved_bytes() const { return engine_.saved_bytes(); }
  bool has_checkpoint() const { return !tiers_[Tier::durable].list().empty(); }

 private:
  engine::EngineOptions options() {
    recipe::load(recipe_, {.file = "test.yaml", .text = std::string(kTinyRecipe)});
    return recipe_.engine_options();
  }
  void at(std::string_view point) {
    if (point != "shard.sync") return;
    waits_ = true;
    while (!may_fail_) std::this_thread::yield();
    throw StorageError("disk gone");
  }

  test::TempDir scratch_;
  std::atomic<bool> waits_ = false, may_fail_ = false;
  Recipe recipe_;
  Device device_{make_cpu_memory(), 1 << 24};
  engine::Engine engine_{
      engine::EnginePlace{
          .device = &device_, .table = &kernels::cpu_table(), .snapshot_shard_bytes = kShardBytes},
      options()};
  std::unique_ptr<World> world_ = World::join({});
  Peers peers_{*world_, "recipe"};
  CheckpointTiers tiers_{checkpoint::CheckpointStore::open_writer(
      scratch_ / "checkpoints", {.max_shard_bytes = kShardBytes,
                                 .failpoint = [this](std::string_view point) { at(point); }})};
  Saver saver_{tiers_,
               engine_,
               peers_,
               true,
               [](std::string_view) {},
               [](const Saver::Done&) {},
               [](const StorageError&) {}};
};

}  // namespace

TEST_CASE("a failing save does not take the place of the number that ended the run") {
  SavingRun run;
  run.let_it_fail();
  CHECK_NOTHROW(run.saver().finish_after(NumericError("the loss is nan")));
  const std::string said = run.log_text();
  CAPTURE(said);
  CHECK(said.find("saving step 3 failed: disk gone") != std::string::npos);
  CHECK(said.find("the run ends for another reason: the loss is nan") != std::string::npos);
  CHECK(!run.has_checkpoint());
}

TEST_CASE("what a save beside the run copies lies as its file will") {
  const SavingRun run;
  const std::string file = run.file_text();
  REQUIRE(file.size() > run.saved_bytes());
  const bool as_in_file =
      run.snapshot().find(std::string_view(file).substr(file.size() - run.saved_bytes())) !=
      std::string_view::npos;
  CHECK(as_in_file);
}

TEST_CASE("an error is said before the save under way is waited for, and only then") {
  SavingRun run;
  run.saver().say_before_giving_up(CommError("rank 2 is gone"));
  CHECK(run.log_text().find("error: rank 2 is gone (the save of step 3 is under way") !=
        std::string::npos);
  run.let_it_fail();
  CHECK_THROWS_AS(run.saver().finish(), StorageError);
  run.saver().say_before_giving_up(CommError("too late"));  // main says it
  CHECK(run.log_text().find("too late") == std::string::npos);
}

}  // namespace llmtrain::train
