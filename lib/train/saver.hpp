#pragma once
/// When and how the loop's checkpoints come to disk.

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/checkpoint_tiers.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// Saves in place of the run, or beside it (checkpoint.async). Beside it a save is a copy of what
/// this rank writes, a thread that writes the copy, and agreements of all ranks between steps; at
/// most one save is under way. Everything is collective, and what it throws is thrown by all ranks:
/// what CheckpointStore::save throws. Where storage fails a local save, the run loses that storage
/// and nothing else: `local_failed` hears of it, and nothing is saved there any more.
class Saver {
 public:
  using Say = std::function<void(std::string_view line)>;
  /// A checkpoint that is there.
  struct Done {
    std::int64_t step = 0;
    Tier tier = Tier::durable;
    std::uint64_t bytes = 0;  // of all ranks' tensors
    double seconds = 0;       // since the save began
    double waited = 0;        // of these, that no step was made
    double rested = 0;        // of these, that this rank's writer left to the run beside it
    double written = 0;       // of rank 0: how long the slowest rank took to write its files
  };
  using Saved = std::function<void(const Done& done)>;
  using LocalFailed = std::function<void(const StorageError& error)>;
  /// Everything outlives it; those it calls may begin to speak later.
  Saver(CheckpointTiers& tiers, engine::Engine& engine, const Peers& peers, bool async, Say say,
        Saved saved, LocalFailed local_failed);

  /// No step may be in flight. Returns when the checkpoint is there; or, beside the run, when the
  /// state is copied, before which it waits for the save under way and says so.
  void save(Tier tier, const LoopState& state, const RunIdentity& identity);
  /// On all ranks alike.
  bool is_under_way(Tier tier) const { return under_way_ && under_way_->tier == tier; }
  /// Goes on with the save under way where all ranks are ready, and tells when it is there.
  /// Waits for no file.
  void poll() { advance({}); }
  /// Waits until no save is under way. Ranks keep answering each other, so that a slow disk is not
  /// taken for a lost rank; one whose writer stands still ends the job (WorkWatch).
  void finish();
  /// The same for a run that `error` ends on all ranks: a save that fails, too, is said, not thrown
  /// in its place.
  void finish_after(const NumericError& error);
  /// For a run that `error` ends on this rank: says it now, if a save is under way, whose thread
  /// may hold up the end for as long as the disk does.
  void say_before_giving_up(const std::exception& error);

 private:
  struct UnderWay {
    Tier tier = Tier::durable;
    std::unique_ptr<checkpoint::CollectiveSave> save;
    std::chrono::steady_clock::time_point begin;
    double waited = 0;
    bool committed = false;
  };

  void advance(std::chrono::milliseconds wait);
  /// `part` of a save, of which all ranks know how it ended; gives the save up where the store
  /// fails it and it is a local one.
  void unless_local_fails(Tier tier, const std::function<void()>& part);
  void begin(Tier tier, std::vector<checkpoint::TensorBox> boxes,
             std::vector<checkpoint::ShardHashes> hashes, checkpoint::RunState state,
             std::chrono::steady_clock::time_point begin);
  /// Who writes what this rank saves. In place of the run a thread, too: ranks keep answering each
  /// other meanwhile, so that one that is lost is found. A device's memory is read by the thread
  /// that drives the device.
  checkpoint::Writing writing() const {
    using checkpoint::Writing;
    if (async_) return Writing::in_background;
    const bool others_wait = peers_->world().place().size > 1;
    return others_wait && engine_->device().kind() == DeviceKind::cpu ? Writing::awaited
                                                                      : Writing::by_caller;
  }
  /// Copies the boxes' bytes to where a thread may read them while the run goes on. Returns the
  /// hashes of their files where the run has all processors: whoever writes beside it has none.
  std::vector<checkpoint::ShardHashes> take_snapshot(std::vector<checkpoint::TensorBox>& boxes);
  /// Taken before the first step: what is not there is no surprise later.
  std::span<std::byte> snapshot_memory(std::uint64_t bytes);

  CheckpointTiers* tiers_;
  engine::Engine* engine_;
  const Peers* peers_;
  bool async_;
  Say say_;
  Saved saved_;
  LocalFailed local_failed_;
  std::unique_ptr<CopyQueue> pinned_;  // of a device that is not the host, owner of the memory
  std::span<std::byte> snapshot_;
  std::optional<UnderWay> under_way_;
  std::chrono::steady_clock::time_point last_begin_ = std::chrono::steady_clock::now();
};

}  // namespace llmtrain::train
