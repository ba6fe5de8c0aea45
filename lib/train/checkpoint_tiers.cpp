#include "lib/train/checkpoint_tiers.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/plan/machine.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/local_checkpoints.hpp"
#include "lib/train/named_checkpoint.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;
using checkpoint::CheckpointStore;

namespace {

/// The first rank from which something in rank 0's `root`, that it sees as `here`, is hidden. The
/// file has a name that nobody has looked for before, so that no system has an answer of old.
std::optional<int> rank_that_does_not_see(const Peers& peers, const fs::path& here) {
  const std::string name = peers.text_of_first("lock.tmp-" + checkpoint::make_nonce(),
                                               "what all shall see");  // a leftover is cleared
  if (peers.is_first()) File::create_new(here / name).close();
  peers.barrier("what all shall see");
  std::error_code ignored;
  const std::vector<int> seen = peers.of_all(fs::exists(here / name, ignored) ? 1 : 0, "who sees");
  if (peers.is_first()) remove_tree(here / name);
  const auto hidden = std::ranges::find(seen, 0);
  if (hidden == seen.end()) return std::nullopt;
  return static_cast<int>(hidden - seen.begin());
}

/// What a recipe says of a directory: `run.output_dir`, its value, and another remedy.
struct Named {
  std::string_view key;
  std::string value, or_else;
};

/// RecipeError, naming a rank from which what rank 0 writes in its `here` is hidden; rank 0 tidies
/// up before.
void require_seen_by_all(const Peers& peers, const fs::path& here, const Named& named,
                         const std::function<void()>& tidy_up) {
  if (peers.world().place().size == 1) return;
  const std::vector<std::string> hosts =
      peers.texts_of_all(plan::machine_facts().host, "machines of ranks");
  const std::optional<int> rank = rank_that_does_not_see(peers, here);
  if (!rank) return;
  if (peers.is_first()) tidy_up();
  fail<RecipeError>(
      "{}: rank {} on {} does not see what rank 0 on {} writes in {}; choose a directory that all "
      "ranks share{}",
      named.key, *rank, hosts[static_cast<std::size_t>(*rank)], hosts[0], named.value,
      named.or_else);
}

CheckpointStore open_local(const Peers& peers, const fs::path& durable, const fs::path& local,
                           checkpoint::StoreOptions options) {
  fs::path root;
  std::optional<CheckpointStore> store;
  if (peers.is_first()) {
    root = choose_local_checkpoints(durable, local);
    store.emplace(CheckpointStore::open_writer(root, options));
  }
  {
    const World::LongWait patience(peers.world());
    const std::string name =
        peers.text_of_first(root.filename().string(), "opening of local checkpoints");
    if (!store) store.emplace(CheckpointStore::open_reader(fs::absolute(local) / name, options));
  }
  const Named named{"checkpoint.local.directory", local.string(),
                    ", or leave checkpoint.local out"};
  require_seen_by_all(peers, store->root(), named, [&] {
    if (root != recorded_local_checkpoints(durable)) remove_tree(root);
  });
  if (peers.is_first()) record_local_checkpoints(durable, root);
  return std::move(*store);
}

}  // namespace

CheckpointTiers open_checkpoints(const Recipe& recipe, const Peers& peers,
                                 const fs::path& directory,
                                 const std::function<void()>& when_held) {
  const fs::path root = directory / "checkpoints";
  const checkpoint::StoreOptions options = store_options(recipe.checkpoint);
  CheckpointStore durable = peers.first_then_others(
      [&] {
        return peers.is_first() ? CheckpointStore::open_writer(root, options)
                                : CheckpointStore::open_reader(root, options);
      },
      "opening of checkpoints");
  when_held();
  require_seen_by_all(peers, durable.root(), {"run.output_dir", directory.string(), ""}, [] {});
  const std::optional<std::string>& local = recipe.checkpoint.local.directory();
  checkpoint::StoreOptions local_options = options;
  local_options.keep_last = recipe.checkpoint.local.keep_latest();
  local_options.keep_every = 0;
  local_options.background_share = 1;  // there is no disk to spare
  if (!local) return CheckpointTiers(std::move(durable));
  return CheckpointTiers(std::move(durable),
                         open_local(peers, root, *local, std::move(local_options)));
}

namespace {

struct Candidate {
  std::uint64_t step = 0;
  Tier tier = Tier::durable;
};

std::vector<Candidate> newest_first(const CheckpointTiers& tiers) {
  std::vector<Candidate> found;
  for (const Tier tier : {Tier::durable, Tier::local}) {
    if (tier == Tier::local && !tiers.has_local()) continue;
    for (const std::uint64_t step : tiers[tier].list()) found.push_back({step, tier});
  }
  std::ranges::stable_sort(found, std::greater(), &Candidate::step);
  return found;
}

void say_verdict(const Candidate& at, std::span<const checkpoint::Problem> problems,
                 double seconds) {
  if (problems.empty()) {
    log::info("every byte of the checkpoint of step {} was checked in {:.2f} s", at.step, seconds);
  } else {
    log::warning("{}checkpoint of step {} is not used: {}", at.tier == Tier::local ? "local " : "",
                 at.step, checkpoint::to_string(problems));
  }
}

}  // namespace

NewestCheckpoint newest_valid(const Peers& peers, const CheckpointTiers& tiers) {
  const World::LongWait patience(peers.world());  // hashing takes the time that it takes
  const std::vector<Candidate> found =
      peers.is_first() ? newest_first(tiers) : std::vector<Candidate>();
  struct Next {
    bool is_there = false;
    Candidate at;
  };
  NewestCheckpoint newest;
  for (std::size_t n = 0;; ++n) {
    const Next next = peers.of_first(n < found.size() ? Next{true, found[n]} : Next(),
                                     "checkpoint that is checked");
    if (!next.is_there) return newest;
    const auto begin = std::chrono::steady_clock::now();
    const auto problems =
        tiers[next.at.tier].verify(next.at.step, checkpoint::VerifyLevel::hash, peers.group());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (peers.is_first()) say_verdict(next.at, problems, seconds.count());
    if (problems.empty()) {
      newest.step = next.at.step;
      newest.tier = next.at.tier;
      return newest;
    }
    ++newest.newer_and_not_valid;
    newest.durable_not_valid = newest.durable_not_valid || next.at.tier == Tier::durable;
  }
}

NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   const CheckpointTiers& tiers) {
  const Resume resume = recipe.checkpoint.resume();
  const bool mine = peers.is_first() && goes_back_to(resume, tiers);
  const bool goes_back = peers.of_first(mine ? 1 : 0, "where the run begins") == 1;
  const NewestCheckpoint newest =
      goes_back ? named_checkpoint(peers, tiers, resume.step) : newest_valid(peers, tiers);
  if (peers.is_first()) {
    // What was saved durably must not be lost without a word; what was saved locally may be.
    const bool must = resume.mode == Resume::Mode::must || resume.mode == Resume::Mode::step;
    const bool may_begin = !must && !newest.durable_not_valid;
    require<CheckpointError>(newest.step || may_begin,
                             "{}: no valid checkpoint to resume from; restore one, or choose "
                             "another run.output_dir",
                             tiers[Tier::durable].root().string());
    require<RecipeError>(!newest.step || resume.mode != Resume::Mode::never,
                         "{} holds checkpoints and checkpoint.resume is never; choose another "
                         "run.output_dir",
                         tiers[newest.tier].root().string());
    // Before the data, which may take hours.
    if (newest.step) check_same_function(tiers[newest.tier], *newest.step, recipe);
    if (!newest.step) check_first_weights(recipe);
  }
  return newest;
}

void leave_local_checkpoints(const CheckpointTiers& tiers) {
  if (tiers.has_local()) return;
  const fs::path& durable = tiers[Tier::durable].root();
  if (const auto left = recorded_local_checkpoints(durable)) {
    log::warning("checkpoint.local is left out: the local checkpoints in {} are left there",
                 left->string());
  }
  forget_local_checkpoints(durable);
}

void remove_local_checkpoints(const CheckpointTiers& tiers) {
  if (!tiers.has_local()) return;
  try {
    forget_local_checkpoints(tiers[Tier::durable].root());
    remove_tree(tiers[Tier::local].root());
  } catch (const StorageError& error) {
    log::warning("{}; the run needs its local checkpoints no more", error.what());
  }
}

}  // namespace llmtrain::train
