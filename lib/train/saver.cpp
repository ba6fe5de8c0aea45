#include "lib/train/saver.hpp"

#include <atomic>
#include <exception>
#include <functional>
#include <utility>

#include "kernels/cpu/copy.hpp"
#include "lib/base/activity.hpp"
#include "lib/base/log.hpp"
#include "lib/base/parallel.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/checkpoint/snapshot.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "lib/train/stall_watch.hpp"

namespace llmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

/// Of the time until the next save, in which a writer beside the run leaves some of it to the run:
/// what it has not written by then it writes as fast as it can, so that few saves wait for others.
constexpr double kPacedPart = 0.5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

using HashOfFile = std::function<checkpoint::ShardHashes(const checkpoint::ShardBoxes&)>;

/// Shares the work among threads. Returns the hashes of the files, or none: what fails at them
/// fails whoever writes the files, too, and then all ranks hear of it.
std::vector<checkpoint::ShardHashes> copy_and_hash(const std::vector<kernels::MemoryCopy>& copies,
                                                   const std::vector<checkpoint::ShardBoxes>& files,
                                                   int threads, const HashOfFile& hash) {
  std::vector<checkpoint::ShardHashes> hashes(files.size());
  std::atomic<bool> has_all = true;
  // Files come first, because they are the longest work.
  parallel_for(files.size() + copies.size(), threads, [&](std::size_t i) {
    activity::tick();
    if (i >= files.size()) return kernels::copy_past_caches(copies[i - files.size()]);
    try {
      hashes[i] = hash(files[i]);
    } catch (const std::exception&) {
      has_all = false;
    }
  });
  if (!has_all) hashes.clear();
  return hashes;
}

}  // namespace

Saver::Saver(CheckpointTiers& tiers, engine::Engine& engine, const Peers& peers, bool async,
             Say say, Saved saved, LocalFailed local_failed)
    : tiers_(&tiers),
      engine_(&engine),
      peers_(&peers),
      async_(async),
      say_(std::move(say)),
      saved_(std::move(saved)),
      local_failed_(std::move(local_failed)) {
  if (async_) {
    snapshot_ =
        snapshot_memory(checkpoint::snapshot_bytes(engine.saved_bytes(), tiers.max_shard_bytes()));
  }
}

std::span<std::byte> Saver::snapshot_memory(std::uint64_t bytes) {
  if (bytes == 0) return {};
  if (engine_->device().kind() == DeviceKind::cpu) {
    const Tensor& snapshot = engine_->snapshot();
    return {snapshot.view().as<std::byte>(), snapshot.view().bytes()};
  }
  log::info("a save copies {} to pinned memory of the host", format_bytes(bytes));
  pinned_ = engine_->device().make_copy_queue();
  return pinned_->pin(bytes);
}

std::vector<checkpoint::ShardHashes> Saver::take_snapshot(
    std::vector<checkpoint::TensorBox>& boxes) {
  std::uint64_t bytes = 0;
  for (const checkpoint::TensorBox& box : boxes) bytes += box.size_bytes();
  require(bytes == engine_->saved_bytes(), "a save of {} bytes, planned as {}", bytes,
          engine_->saved_bytes());
  const std::uint64_t shard_bytes = tiers_->max_shard_bytes();
  const std::vector<std::span<std::byte>> places =
      checkpoint::place_in_snapshot(boxes, shard_bytes, snapshot_);
  std::vector<kernels::MemoryCopy> copies;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    checkpoint::TensorBox& box = boxes[i];
    if (box.fetch) {
      std::exchange(box.fetch, {})(0, places[i]);
      box.bytes = places[i];
    } else {
      copies.push_back({places[i], box.bytes});
    }
  }
  std::vector<checkpoint::ShardBoxes> files;
  // Beside a GPU there are processors that do nothing while the files are written.
  if (engine_->device().kind() == DeviceKind::cpu) {
    files = checkpoint::divide_into_shards(boxes, shard_bytes);
  }
  std::vector<checkpoint::ShardHashes> hashes = copy_and_hash(
      kernels::in_blocks(copies), files, engine_->context().kernel.threads, [&](const auto& file) {
        const auto of_file = std::span(boxes).subspan(file.begin, file.end - file.begin);
        return checkpoint::hash_shard(of_file, file.order, shard_bytes);
      });
  for (std::size_t i = 0; i < boxes.size(); ++i) boxes[i].bytes = places[i];
  return hashes;
}

void Saver::save(Tier tier, const LoopState& state, const RunIdentity& identity) {
  poll();
  const Clock::time_point begin = Clock::now();
  if (under_way_) {
    say_(fmt::format(
        "the save of step {} waits: step {} is being written since {:.1f} s; storage is slower "
        "than saves are due",
        state.step, under_way_->save->step(), seconds_since(under_way_->begin)));
    finish();
  }
  if (tier == Tier::local && !tiers_->saves_locally()) return;  // not any more
  std::vector<checkpoint::TensorBox> boxes = boxes_to_save(*engine_);
  std::vector<checkpoint::ShardHashes> hashes;
  if (async_) hashes = take_snapshot(boxes);
  checkpoint::RunState run = run_state(*engine_, state, identity);
  unless_local_fails(
      tier, [&] { this->begin(tier, std::move(boxes), std::move(hashes), std::move(run), begin); });
}

void Saver::begin(Tier tier, std::vector<checkpoint::TensorBox> boxes,
                  std::vector<checkpoint::ShardHashes> hashes, checkpoint::RunState state,
                  Clock::time_point begin) {
  // The next save is expected after as long as this one came after the last.
  const Clock::time_point last = std::exchange(last_begin_, begin);
  const Clock::time_point pace_until =
      begin + std::chrono::duration_cast<Clock::duration>(kPacedPart * (begin - last));
  const World::LongWait patience(peers_->world());  // a slow disk is no lost rank
  under_way_ = UnderWay{
      .tier = tier,
      .save = (*tiers_)[tier].begin(state.schedule_position, std::move(boxes), std::move(state),
                                    peers_->group(), writing(), pace_until, std::move(hashes)),
      .begin = begin};
  under_way_->waited = seconds_since(begin);
  if (async_) return;
  if (writing() == checkpoint::Writing::awaited) return finish();
  while (!under_way_->committed) under_way_->committed = under_way_->save->advance();
}

void Saver::unless_local_fails(Tier tier, const std::function<void()>& part) {
  const auto give_up = [&](const StorageError& error) {
    if (tier == Tier::durable) throw;
    under_way_.reset();
    tiers_->stop_local_saves();
    local_failed_(error);
  };
  try {
    part();
  } catch (const checkpoint::SaveFailed& error) {
    give_up(error);
  } catch (const checkpoint::LockLost& error) {
    give_up(error);
  }
}

void Saver::advance(std::chrono::milliseconds wait) {
  if (!under_way_) return;
  if (!under_way_->committed) {
    if (!peers_->all_of(under_way_->save->is_idle(wait), "whether a save is written")) return;
    unless_local_fails(under_way_->tier,
                       [this] { under_way_->committed = under_way_->save->advance(); });
  }
  if (!under_way_ || !under_way_->committed) return;
  const double seconds = seconds_since(under_way_->begin);
  saved_({.step = static_cast<std::int64_t>(under_way_->save->step()),
          .tier = under_way_->tier,
          .bytes = under_way_->save->total_bytes(),
          .seconds = seconds,
          .waited = async_ ? under_way_->waited : seconds,
          .rested = under_way_->save->rested_seconds(),
          .written = under_way_->save->written_seconds()});
  under_way_.reset();
}

void Saver::finish() {
  constexpr std::chrono::milliseconds kBetweenAnswers{50};
  if (under_way_) under_way_->save->hurry();
  WorkWatch watch(peers_->world().patience());
  while (under_way_) {
    // Its answers to others say nothing of its writer.
    watch.look(under_way_->save->is_idle() ? std::nullopt
                                           : std::optional(under_way_->save->progress()));
    advance(kBetweenAnswers);
  }
}

void Saver::finish_after(const NumericError& error) {
  try {
    finish();
  } catch (const Error& of_save) {
    log::error("{}; the run ends for another reason: {}", of_save.what(), error.what());
  }
}

void Saver::say_before_giving_up(const std::exception& error) {
  if (!under_way_ || under_way_->save->is_idle()) return;
  log::error("{} (the save of step {} is under way, and given up first)", error.what(),
             under_way_->save->step());
}

}  // namespace llmtrain::train
