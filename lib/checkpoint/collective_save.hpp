#pragma once
/// A save by all writers of a checkpoint. What is slow, writing files, may be done by a thread that
/// sends no message and starts no other; what they agree on is agreed where their callers meet.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/base/activity.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "lib/comm/communicator.hpp"

namespace llmtrain::checkpoint {

class CheckpointStore;

/// The store has not taken a save; all writers have agreed on that.
class SaveFailed : public StorageError {
  using StorageError::StorageError;
};

enum class Writing : std::uint8_t {
  by_caller,      // when it advances
  awaited,        // by a thread, at full speed: whoever waits for it answers others meanwhile
  in_background,  // by a thread that takes its share of time (StoreOptions::background_share)
};

/// The text that `work` returns, made by a thread of its own; std::system_error where none can be
/// started.
std::future<std::string> in_thread(std::function<std::string()> work);

/// First all write their shards; when those of every writer are durable, the first one commits.
/// What retention wants to know is then read back by all, before the first one deletes anything.
class CollectiveSave {
 public:
  /// As CheckpointStore::begin. Collective, like advance().
  CollectiveSave(CheckpointStore& store, std::uint64_t step, std::vector<TensorBox> boxes,
                 RunState run, Communicator& writers, Writing writing,
                 WritePace::Clock::time_point pace_until, std::vector<ShardHashes> hashes);
  /// Gives up what is under way: the temporary directory goes, earlier checkpoints stay.
  ~CollectiveSave() = default;
  CollectiveSave(const CollectiveSave&) = delete;
  CollectiveSave& operator=(const CollectiveSave&) = delete;

  std::uint64_t step() const { return step_; }
  /// Of all writers' boxes.
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// Waits for so long, or until this writer has nothing to write for now; true then.
  bool is_idle(std::chrono::milliseconds wait = {});
  /// From now on this writer writes as fast as it can, whatever its store's limit.
  void hurry();
  /// Grows while this writer's thread gets on with its part.
  std::uint64_t progress() const { return ticks_; }
  /// Of the first writer, once advance() was true: how long the slowest one took to write its
  /// shards.
  double written_seconds() const { return written_seconds_; }
  /// That its thread has rested, as its store's share asks for.
  double rested_seconds() const { return pace_ ? pace_->rested_seconds() : 0; }
  /// What comes next, to be called when all writers are idle; else it waits. True when the
  /// checkpoint is there. Where a writer failed, all throw what it threw, with its rank (SaveFailed
  /// or LockLost where the store did, SourceFailed where a fetch did); nothing of the save is left
  /// then, or, where only its retention failed, the checkpoint is there.
  bool advance();

 private:
  enum class Stage : std::uint8_t { writing, committing, verifying, retaining, done };

  void start(std::function<std::string()> work);
  std::string write(const std::string& directory);
  /// What this writer's part of the stage came to.
  std::string finish_part();
  std::string commit(const std::vector<std::string>& shards);
  /// Of the first writer: the step that all shall read back next, or "" when what is not kept is
  /// deleted.
  std::string retain();
  /// What is wrong with this writer's part of it.
  std::string read_back(std::uint64_t step);
  /// Of the text that each writer has, or throws what one of them threw.
  std::vector<std::string> agree(const std::function<std::string()>& mine);

  CheckpointStore* store_;
  std::uint64_t step_;
  std::uint64_t total_bytes_ = 0;
  std::vector<TensorBox> boxes_;
  std::vector<ShardHashes> hashes_;
  RunState run_;
  Communicator* writers_;
  Writing writing_;
  Stage stage_ = Stage::writing;
  std::uint64_t read_back_ = 0;  // the step that is verified
  double written_seconds_ = 0;
  std::unique_ptr<PendingSave> pending_;  // of the first writer
  std::optional<WritePace> pace_;
  activity::Ticks ticks_{0};
  // Last, so that nothing above goes while its thread lives; the request comes before the wait.
  struct Work {
    std::stop_source stop;
    std::future<std::string> text;
    ~Work() { stop.request_stop(); }
  };
  Work work_;
};

}  // namespace llmtrain::checkpoint
