// checkpoint.local: a run also saves on fast storage that may be lost, and goes on from the newest
// of both, with the bits of one that never stopped and never saved there.
#include <csignal>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/starts.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;
using Steps = std::vector<std::uint64_t>;

constexpr int kFirst = 40, kAll = 160;

const Overrides kLocal{"checkpoint.local={directory: fast, interval: 3}"};

Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Overrides steps(int count, const Overrides& more = {}) {
  return joined({fmt::format("training.max_steps={}", count), "checkpoint.interval=200",
                 "eval.interval=null", "metrics.interval=1"},
                more);
}

fs::path durable_of(const Workspace& here) { return here.path / "run" / "checkpoints"; }

fs::path local_of(const Workspace& here) {
  const auto local = train::recorded_local_checkpoints(durable_of(here));
  REQUIRE(local.has_value());
  return *local;
}

std::string step_name(std::uint64_t step) { return checkpoint::step_directory_name(step); }

Steps saved_in(const fs::path& root) {
  return checkpoint::CheckpointStore::open_reader(root).list();
}

/// A durable checkpoint of step 40, and killed behind step 60: two local ones, the newer of which
/// is returned.
std::int64_t start_and_kill(const Workspace& here, const Overrides& more = kLocal) {
  run_well(here, steps(kFirst));
  const auto killed = here.run(steps(kAll, more), {.signal = SIGKILL, .signal_after = "  60/160"});
  INFO(killed.output);
  REQUIRE(killed.exit_code == -SIGKILL);
  REQUIRE(saved_in(durable_of(here)) == Steps{kFirst});
  const Steps local = saved_in(local_of(here));
  REQUIRE(local.size() >= 2);
  REQUIRE(local.back() >= 57);
  return static_cast<std::int64_t>(local.back());
}

const std::string& expected() {
  static const std::string text = [] {
    const Workspace whole(kTinyRecipe);
    run_well(whole, steps(kFirst));
    run_well(whole, steps(kAll));
    return fingerprint(whole.path, kAll);
  }();
  return text;
}

void damage(const fs::path& checkpoint) {
  const fs::path shard = checkpoint / "shard-0000-0000.safetensors";
  std::string content = read_file(shard);
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file_atomic(shard, content);
}

/// Goes on to the end, from where `says` tells, and with the bits of a run that never stopped.
void check_goes_on(const Workspace& here, const Overrides& more,
                   const std::vector<std::string>& says) {
  const auto result = here.run(steps(kAll, more));
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  for (const std::string& part : says) {
    CAPTURE(part);
    CHECK(result.output.find(part) != std::string::npos);
  }
  CHECK(fingerprint(here.path, kAll) == expected());
}

std::string from_durable() { return fmt::format("resumed from step {}\n", kFirst); }

std::string from_local(std::int64_t step, const fs::path& directory) {
  return fmt::format("resumed from step {}, saved in {}", step, directory.string());
}

}  // namespace

TEST_CASE("local: killed between a local and a durable save, a run goes on from the local one") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    const Workspace here(kTinyRecipe);
    const Overrides more = joined(kLocal, {fmt::format("checkpoint.async={}", async)});
    const std::int64_t last = start_and_kill(here, more);
    const fs::path local = local_of(here);
    const std::int64_t reported = here.last_step();
    CHECK(reported - last < (async ? 6 : 3));
    const auto result = here.run(steps(kAll, more));
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    CHECK(holds(result.output, {from_local(last, local)}));
    if (!async) CHECK(fingerprint(here.path, kAll) == expected());  // its memory is another one
    const auto starts = train::read_starts(here.path / "run");
    CHECK(starts.back().step == last);
    CHECK(starts.back().lost_steps <= reported - last);
    // A run that is done leaves nothing there.
    CHECK(saved_in(durable_of(here)) == Steps{kFirst, kAll});
    CHECK(fs::is_empty(here.path / "fast"));
    CHECK(!train::recorded_local_checkpoints(durable_of(here)));
  }
}

TEST_CASE("local: a directory that is gone is said, and one that comes back is not gone on from") {
  const Workspace here(kTinyRecipe);
  start_and_kill(here);
  const fs::path old = local_of(here);
  fs::rename(old, here.path / "away");
  const auto killed =
      here.run(steps(kAll, kLocal), {.signal = SIGKILL, .signal_after = "  50/160"});
  INFO(killed.output);
  REQUIRE(killed.exit_code == -SIGKILL);
  CHECK(holds(killed.output,
              {fmt::format("the local checkpoints in {} are gone", old.string()), from_durable()}));
  const fs::path now = local_of(here);
  CHECK(now != old);
  const std::uint64_t last = saved_in(now).back();
  fs::rename(here.path / "away", old);
  check_goes_on(here, kLocal, {from_local(static_cast<std::int64_t>(last), now)});
  CHECK(fs::exists(old));
}

TEST_CASE("local: of damaged ones a run goes on from the next older one of both kinds") {
  for (const bool both : {false, true}) {
    const Workspace here(kTinyRecipe);
    const std::int64_t last = start_and_kill(here);
    const fs::path local = local_of(here);
    const Steps found = saved_in(local);
    damage(local / step_name(found.back()));
    if (both) damage(local / step_name(found[found.size() - 2]));
    for (std::size_t i = 0; i + 2 < found.size(); ++i) fs::remove_all(local / step_name(found[i]));
    const auto verified = here.call({"ckpt", "verify", "run"});
    INFO(verified.output);
    CHECK(verified.exit_code == 4);
    CHECK(holds(verified.output, {fmt::format("INVALID  in {}\n", local.string())}));
    check_goes_on(
        here, kLocal,
        {fmt::format("local checkpoint of step {} is not used: shard-0000-0000.safetensors", last),
         both ? fmt::format("resumed from step {} (newer and not valid: 2)", kFirst)
              : from_local(last - 3, local) + " (newer and not valid: 1)"});
  }
}

TEST_CASE("local: without a durable one, damaged local ones are no reason not to begin") {
  const Workspace here(kTinyRecipe);
  const auto killed =
      here.run(steps(kAll, kLocal), {.signal = SIGKILL, .signal_after = "  10/160"});
  REQUIRE(killed.exit_code == -SIGKILL);
  for (const std::uint64_t step : saved_in(local_of(here)))
    damage(local_of(here) / step_name(step));
  const auto must = here.run(steps(kAll, joined(kLocal, {"checkpoint.resume=must"})));
  CHECK(must.exit_code == 4);
  const auto begun = here.run(steps(kAll, kLocal));
  INFO(begun.output);
  CHECK(begun.exit_code == 0);
  CHECK(holds(begun.output, {"is not used: shard-0000-0000.safetensors"}));
  CHECK(!holds(begun.output, {"resumed"}));
}

TEST_CASE("local: a durable checkpoint that is newer, or of the same step, goes first") {
  const Workspace here(kTinyRecipe);
  const std::int64_t last = start_and_kill(here);
  const fs::path local = local_of(here);
  const auto stopped = here.run(steps(kAll, joined(kLocal, {"checkpoint.local.interval=1"})),
                                {.signal = SIGTERM, .signal_after = "  90/160"});
  INFO(stopped.output);
  REQUIRE(stopped.exit_code == 75);
  CHECK(holds(stopped.output, {from_local(last, local)}));
  // A stop saves durably, though the step was saved locally.
  const std::uint64_t step = saved_in(durable_of(here)).back();
  CHECK(step >= 90);
  REQUIRE(saved_in(local).back() == step);
  CHECK(holds(stopped.output, {fmt::format("after step {};", step)}));
  SUBCASE("of the same step") {}
  SUBCASE("newer") { fs::remove_all(local / step_name(step)); }
  check_goes_on(here, kLocal, {fmt::format("resumed from step {}\n", step)});
}

TEST_CASE("local: multiples of keep_every and the end are durable, all other saves are not") {
  const Workspace here(kTinyRecipe);
  const auto result =
      here.run({"training.max_steps=26", "checkpoint.keep_every=4", "checkpoint.keep_latest=2",
                "checkpoint.interval=null", "checkpoint.local={directory: fast, interval: 3}"});
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(saved_in(durable_of(here)) == Steps{4, 8, 12, 16, 20, 24, 26});
  for (const int step : {3, 6, 9, 15, 18, 21}) {
    CHECK(holds(result.output, {"/" + step_name(static_cast<std::uint64_t>(step))}));
  }
}

TEST_CASE("local: two runs in one directory, and a copy of a run, never meet") {
  const Workspace here(kTinyRecipe);
  const std::int64_t last = start_and_kill(here);
  const fs::path local = local_of(here);
  SUBCASE("another run") {
    const auto other = here.run(steps(50, joined(kLocal, {"run.output_dir=other"})));
    INFO(other.output);
    CHECK(other.exit_code == 0);
    CHECK(!holds(other.output, {"resumed"}));
    check_goes_on(here, kLocal, {from_local(last, local)});
  }
  SUBCASE("a run whose directory was deleted") {
    fs::remove_all(here.path / "run");
    const auto anew = here.run(steps(10, kLocal));
    INFO(anew.output);
    CHECK(anew.exit_code == 0);
    CHECK(!holds(anew.output, {"resumed"}));
  }
  SUBCASE("a copy that has taken the place of the original") {
    fs::rename(here.path / "run", here.path / "original");
    fs::copy(here.path / "original", here.path / "run", fs::copy_options::recursive);
    check_goes_on(here, kLocal, {"local.json is a copy, or was moved", from_durable()});
  }
  SUBCASE("a copy elsewhere") {
    fs::copy(here.path / "run", here.path / "copy", fs::copy_options::recursive);
    const auto copy = here.run(steps(50, joined(kLocal, {"run.output_dir=copy"})));
    INFO(copy.output);
    CHECK(copy.exit_code == 0);
    CHECK(holds(copy.output, {"local.json is a copy, or was moved", from_durable()}));
    check_goes_on(here, kLocal, {from_local(last, local)});
  }
  SUBCASE("a record that cannot be read") {
    std::ofstream(durable_of(here) / "local.json") << "{";
    check_goes_on(here, kLocal,
                  {"where this run had local checkpoints is not known", from_durable()});
  }
}

TEST_CASE("local: a run that goes on without them, or elsewhere, does not meet them again") {
  const Workspace here(kTinyRecipe);
  start_and_kill(here);
  const fs::path local = local_of(here);
  const Overrides elsewhere{"checkpoint.local={directory: other, interval: 3}"};
  SUBCASE("without") {
    const auto without = here.run(steps(44));
    INFO(without.output);
    CHECK(without.exit_code == 0);
    CHECK(holds(without.output, {"the run goes on without local checkpoints", from_durable()}));
  }
  SUBCASE("elsewhere") {
    const auto other = here.run(steps(44, elsewhere));
    INFO(other.output);
    CHECK(other.exit_code == 0);
    CHECK(holds(other.output, {"checkpoint.local.directory has changed", from_durable()}));
  }
  const auto again = here.run(steps(48, kLocal));
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(holds(again.output, {"resumed from step 44\n"}));
  CHECK(fs::exists(local));
}

TEST_CASE("local: a run that a bad step takes back goes to local checkpoints as to durable ones") {
  const auto run = [&](const Workspace& here, const Overrides& saves) {
    return here.run(joined(saves, {"optimizer.lr=3", "training.max_steps=12", "eval.interval=null",
                                   "resilience={on_loss_spike: rollback, loss_spike_window: 1, "
                                   "loss_spike_factor: 1.001, max_rollbacks: 1000}"}));
  };
  const Workspace durable(kTinyRecipe), local(kTinyRecipe);
  const auto of_durable = run(durable, {"checkpoint.interval=1"});
  const auto of_local =
      run(local, {"checkpoint.interval=null", "checkpoint.local={directory: fast, interval: 1}"});
  INFO(of_local.output);
  CHECK(of_local.exit_code == of_durable.exit_code);
  const auto incidents = [](const Workspace& here) {
    return read_file(here.path / "run" / "incidents.jsonl");
  };
  CHECK(holds(incidents(durable), {"went back to step"}));
  CHECK(incidents(local) == incidents(durable));
  CHECK(local.last_step() == durable.last_step());
}

TEST_CASE("local: ckpt ls tells where each checkpoint is, and where those are that it cannot see") {
  const Workspace here(kTinyRecipe);
  const std::int64_t last = start_and_kill(here);
  const fs::path local = local_of(here);
  const auto listed = here.call({"ckpt", "ls", "run"});
  INFO(listed.output);
  CHECK(listed.exit_code == 0);
  CHECK(holds(listed.output, {fmt::format("step {:>8} ", kFirst), fmt::format("step {:>8} ", last),
                              fmt::format(" tokens seen  in {}\n", local.string())}));
  CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);
  fs::remove_all(here.path / "fast");
  const auto unseen = here.call({"ckpt", "ls", "run"});
  CHECK(unseen.exit_code == 0);
  CHECK(holds(unseen.output, {local.string() + ": not here"}));
  CHECK(!holds(unseen.output, {fmt::format("step {:>8} ", last)}));
}

TEST_CASE("local: another process that writes there is respected, as in the run's directory") {
  const Workspace here(kTinyRecipe);
  start_and_kill(here);
  std::ifstream file("/proc/self/stat");
  std::string stat;
  std::getline(file, stat);
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string ticks;
  for (int number = 3; number <= 22; ++number) fields >> ticks;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::ofstream(local_of(here) / "lock", std::ios::trunc)
      << fmt::format(R"({{"host": "{}", "pid": {}, "start_ticks": {}}})", host, ::getpid(), ticks);
  const auto result = here.run(steps(kAll, kLocal));
  INFO(result.output);
  CHECK(result.exit_code == 7);
  CHECK(holds(result.output,
              {local_of(here).string(), fmt::format("held by process {}", ::getpid())}));
}

TEST_CASE("local: a run that goes back to a named step leaves newer local ones, for good") {
  const Workspace here(kTinyRecipe);
  const std::int64_t last = start_and_kill(here);
  const std::string named = fmt::format("checkpoint.resume={}", kFirst);
  const auto killed = here.run(steps(kAll, joined(kLocal, {named})),
                               {.signal = SIGKILL, .signal_after = "went back to"});
  INFO(killed.output);
  REQUIRE(killed.exit_code == -SIGKILL);
  CHECK(holds(killed.output, {from_durable()}));
  const auto listed = here.call({"ckpt", "ls", "run"});
  INFO(listed.output);
  CHECK(listed.exit_code == 0);
  CHECK(holds(listed.output, {(local_of(here) / step_name(last)).string() + ".aside-"}));
  check_goes_on(here, kLocal, {"resumed from step "});
}

TEST_CASE("local: a directory in the run's own, or without room, is refused at the start") {
  const Workspace here(kTinyRecipe);
  const auto refused = [&](const std::string& directory) {
    const auto result =
        here.run({fmt::format("checkpoint.local={{directory: {}, interval: 1}}", directory)});
    CAPTURE(directory);
    INFO(result.output);
    CHECK(result.exit_code == 2);
    CHECK(holds(result.output, {"is in run.output_dir run, where checkpoint.interval saves"}));
  };
  refused("run/checkpoints");
  refused("run");
  refused("run/fast/");
  fs::create_directory_symlink("run", here.path / "link");
  refused("link/checkpoints");
  // A file system without a block.
  const auto full = here.run({"checkpoint.local={directory: /proc, interval: 1}"});
  INFO(full.output);
  CHECK(full.exit_code == 3);
  CHECK(holds(full.output, {"of disk (",
                            " times the safety factor of 1.2), but /proc has 0 B "
                            "free; choose another checkpoint.local.directory"}));
}

}  // namespace llmtrain
