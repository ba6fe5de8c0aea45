#pragma once
/// The checkpoints of a run in its directory, and those on faster storage if the recipe asks for
/// them: two stores of one kind, of which a run goes on from the newest valid checkpoint of both.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "lib/checkpoint/store.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

class CheckpointTiers {
 public:
  explicit CheckpointTiers(checkpoint::CheckpointStore durable,
                           std::optional<checkpoint::CheckpointStore> local = {})
      : durable_(std::move(durable)), local_(std::move(local)) {}

  bool has_local() const { return local_.has_value(); }
  /// Whether local saves are made. Not where its storage has failed one, or could not be written
  /// when the run began; what is there may still be gone on from. On all ranks alike.
  bool saves_locally() const { return has_local() && !local_failed_; }
  void stop_local_saves() { local_failed_ = true; }
  /// Nor is it gone on from.
  void drop_local() { local_.reset(); }
  /// Of either's files.
  std::uint64_t max_shard_bytes() const { return durable_.options().max_shard_bytes; }
  /// A Tier::local only where there is one.
  checkpoint::CheckpointStore& operator[](Tier tier) {
    return tier == Tier::durable ? durable_ : local_.value();
  }
  const checkpoint::CheckpointStore& operator[](Tier tier) const {
    return tier == Tier::durable ? durable_ : local_.value();
  }

 private:
  checkpoint::CheckpointStore durable_;
  std::optional<checkpoint::CheckpointStore> local_;
  bool local_failed_ = false;
};

/// What is said where `reason` is why there are no more local saves.
std::string without_local_saves(std::string_view reason, const std::filesystem::path& durable);

/// The stores of a run in `directory`; rank 0 writes its own files. Each rank does `when_held` once
/// rank 0 has the directory's lock, before anything else may go wrong. Collective. RecipeError,
/// naming a rank, where not all see the local one. Of a run that has checkpoints local storage
/// that fails is said, and costs it local saves alone.
CheckpointTiers open_checkpoints(const Recipe& recipe, const Peers& peers,
                                 const std::filesystem::path& directory,
                                 const std::function<void()>& when_held);

struct NewestCheckpoint {
  std::optional<std::uint64_t> step;  // of the newest valid one
  Tier tier = Tier::durable;          // where it is
  bool is_checked = false;            // every byte of it; else manifest, lengths and headers alone
  std::int64_t newer_and_not_valid = 0;
  bool durable_not_valid = false;  // one of these at least
  bool is_unread = false;          // one of these could not be read, and may be whole
  bool local_is_unread = false;    // a local one of these
  bool is_named = false;           // by checkpoint.resume: set_newer_aside() follows
};

/// Of those that rank 0 finds; all ranks share the files that are read to check one, and what is
/// not valid is said. Of two of one step the durable one; of those for which `first` is true before
/// all others, if it is given. Collective. StorageError where this user may not read one that comes
/// before it. Where there are durable ones, local storage that nobody can look at is said, and
/// dropped.
NewestCheckpoint newest_valid(const Peers& peers, CheckpointTiers& tiers,
                              const std::function<bool(std::uint64_t step, Tier)>& first = {});

/// The same of a run that begins, or the one that checkpoint.resume names. Its bytes are checked
/// here only where the run may have to begin if they are damaged; else beside its loading, after
/// which older_checkpoint() takes its place. Collective.
/// CheckpointError (StorageError where one could not be read) when there is none and the recipe, or
/// a durable one that is not valid, forbids to begin, and what named_checkpoint and
/// check_same_function throw; RecipeError when there is one and the recipe wants none; what
/// check_first_weights throws when there is none.
NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   CheckpointTiers& tiers);

/// The newest one behind `damaged`, whose bytes have `problems`, which is said. Every byte of it is
/// checked. Collective. Throws what newest_checkpoint does.
NewestCheckpoint older_checkpoint(const Recipe& recipe, const Peers& peers, CheckpointTiers& tiers,
                                  NewestCheckpoint damaged,
                                  std::span<const checkpoint::Problem> problems);

/// On rank 0, before anything follows from what the run goes on from: one without local checkpoints
/// goes a way of its own, and never meets earlier ones again.
void leave_local_checkpoints(const CheckpointTiers& tiers);

/// On rank 0, of a run that is done and has saved durably: gives the fast storage back. What cannot
/// be removed is said.
void remove_local_checkpoints(const CheckpointTiers& tiers);

}  // namespace llmtrain::train
