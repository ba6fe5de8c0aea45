// Disks that lose power in a save: T3 of docs/reliability.md.
#include <filesystem>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

/// The save of step 6 over two earlier ones, after which the first of these is deleted; or over one
/// of its own step that is damaged. Every call of it, and what was there before and after.
class RecordedSave {
 public:
  RecordedSave(const Layout& layout, bool replaces)
      : layout(layout),
        replaces(replaces),
        job_(layout, &prepared_job(layout, replaces ? 6 : 4)),
        before_(damaged()) {
    for (const std::uint64_t step : {2u, 4u}) add_manifest(step);
    const std::string trace = (job_.directory() / "trace").string();
    Environment watched = io_fault(0, 0, {{"IO_FAULT_TRACE", trace}});
    std::erase_if(watched, [](const auto& entry) { return entry.first == "IO_FAULT_RANK"; });
    const ProcessResult run = job_.run(watched);
    require(run.exit_code == 0, "{}", run.output);
    calls = read_trace(trace);
    add_manifest(6);
    durable_after_ = find_durable();
  }

  std::string name() const { return layout.name() + (replaces ? ", replaced" : ""); }
  DiskState state(std::size_t after, std::uint64_t seed) const {
    return before_.state(calls, after, seed);
  }

  /// What does not hold when a store is opened on this disk.
  std::string check_store(const fs::path& root, std::size_t after) const {
    const auto store = checkpoint::CheckpointStore::open_writer(root);
    std::vector<std::uint64_t> good;
    for (const std::uint64_t step : store.list()) {
      const auto problems = store.verify(step, checkpoint::VerifyLevel::hash);
      const std::string manifest = read_manifest(store.directory_of(step));
      if (replaces && step == 6 && manifest == damaged_) continue;  // as it was
      if (!problems.empty()) return fmt::format("step {}: {}", step, to_string(problems.front()));
      if (manifest != manifests_.at(step)) return fmt::format("step {} is a mixture", step);
      good.push_back(step);
    }
    const std::uint64_t newest = good.empty() ? 0 : good.back();
    if (newest < (after >= durable_after_ ? 6 : 4)) return fmt::format("the newest is {}", newest);
    return good.size() < 2 ? "one checkpoint is left" : "";
  }

  /// What does not hold when the run is started on this disk.
  std::string go_on(const DiskState& disk) const {
    const Job job(layout, &job_);
    fs::remove_all(job.checkpoints());
    disk.write(job.checkpoints());
    const ProcessResult run = job.run();
    if (run.exit_code != 0) return fmt::format("exit code {}: {}", run.exit_code, run.output);
    const bool same = job.fingerprint(Layout::kSteps) == expected_fingerprint(layout);
    return same ? "" : "ends with another state";
  }

  const Layout layout;
  const bool replaces;
  std::vector<IoCall> calls;

 private:
  static std::string read_manifest(const fs::path& directory) {
    return read_file(directory / "manifest.json");
  }
  fs::path directory_of(std::uint64_t step) const {
    return job_.checkpoints() / checkpoint::step_directory_name(step);
  }
  void add_manifest(std::uint64_t step) { manifests_[step] = read_manifest(directory_of(step)); }

  PowerLoss damaged() {
    if (replaces) {
      damaged_ = read_manifest(directory_of(6));
      for (const auto& entry : fs::directory_iterator(directory_of(6))) {
        if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 1000);
      }
    }
    return PowerLoss(job_.checkpoints());
  }

  std::size_t find_durable() const {
    bool renamed = false;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool visible = calls[i].second.ends_with("step-00000006");
      renamed = renamed || (calls[i].call == "rename" && visible);
      if (renamed && calls[i].call == "fsync" && calls[i].path == job_.checkpoints()) return i + 1;
    }
    fail("the directory was not synced after the commit");
  }

  Job job_;
  std::string damaged_;  // manifest
  PowerLoss before_;
  std::map<std::uint64_t, std::string> manifests_;
  std::size_t durable_after_ = 0;  // calls after which the new checkpoint may not be lost
};

}  // namespace

TEST_CASE("T3 a loss of power at any call of a save leaves the old or the new checkpoint") {
  Journal journal("T3", 211);
  constexpr std::uint64_t kSeeds = 24;
  constexpr std::size_t kRunEvery = 50;
  std::set<std::string> known;
  for (const auto& [layout, replaces] : {std::pair<Layout, bool>{{1, false}, false},
                                         {{1, true}, false},
                                         {{2, false}, false},
                                         {{2, true}, false},
                                         {{1, false}, true},
                                         {{2, true}, true}}) {
    const RecordedSave save(layout, replaces);
    REQUIRE(save.calls.size() > 40);
    for (std::size_t calls = 0; calls <= save.calls.size(); ++calls) {
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const DiskState disk = save.state(calls, seed);
        if (!known.insert(disk.digest()).second) continue;
        const std::string name =
            fmt::format("{}, after {} calls, choice {}", save.name(), calls, seed);
        journal.run(name, [&] {
          const TempDir place;
          disk.write(place / "disk");
          return save.check_store(place / "disk", calls);
        });
        if (known.size() % kRunEvery != 0) continue;
        journal.run(name + ", and the run goes on", [&] { return save.go_on(disk); });
      }
    }
  }
  MESSAGE(known.size() << " disks, no two of them alike");
  CHECK(known.size() >= 2000);
  journal.check();
}

}  // namespace llmtrain::test
