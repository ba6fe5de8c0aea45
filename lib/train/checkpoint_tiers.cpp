#include "lib/train/checkpoint_tiers.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "lib/base/directory.hpp"
#include "lib/base/ending.hpp"
#include "lib/base/file.hpp"
#include "lib/base/file_errors.hpp"
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
using checkpoint::VerifyLevel;

namespace {

/// Of a file that the others shall see; they clear it as a leftover where rank 0 does not. No name
/// that anybody has looked for before, so that no system has an answer of old.
std::string new_probe(const fs::path& here) {
  std::string name = "lock.tmp-" + checkpoint::make_nonce();
  File::create_new(here / name).close();
  return name;
}

/// The first rank from which rank 0's probe is hidden in what it sees as `here`.
std::optional<int> rank_that_does_not_see(const Peers& peers, const fs::path& here,
                                          const std::string& probe) {
  const std::string name = peers.text_of_first(probe, "what all shall see");
  const std::vector<int> seen = peers.of_all(has_entry(here / name) ? 1 : 0, "who sees");
  try {
    if (peers.is_first()) remove_tree(here / name);
  } catch (const StorageError& error) {
    log::warning("{} (harmless: the next start removes it)", error.what());
  }
  const auto hidden = std::ranges::find(seen, 0);
  if (hidden == seen.end()) return std::nullopt;
  return static_cast<int>(hidden - seen.begin());
}

/// What a recipe says of a directory: `run.output_dir`, its value, and another remedy.
struct Named {
  std::string_view key;
  std::string value, or_else;
};

/// RecipeError, naming a rank from which the `probe` of rank 0 in its `here` is hidden; rank 0
/// tidies up before.
void require_seen_by_all(const Peers& peers, const fs::path& here, const std::string& probe,
                         const Named& named, const std::function<void()>& tidy_up) {
  if (peers.world().place().size == 1) return;
  const std::vector<std::string> hosts =
      peers.texts_of_all(plan::machine_facts().host, "machines of ranks");
  const std::optional<int> rank = rank_that_does_not_see(peers, here, probe);
  if (!rank) return;
  if (peers.is_first()) tidy_up();
  fail<RecipeError>(
      "{}: rank {} on {} does not see what rank 0 on {} writes in {}; choose a directory that all "
      "ranks share{}",
      named.key, *rank, hosts[static_cast<std::size_t>(*rank)], hosts[0], named.value,
      named.or_else);
}

/// What the recipe says of `root` is `key`.
CheckpointStore open_writer(const fs::path& root, const checkpoint::StoreOptions& options,
                            std::string_view key) {
  try {
    return CheckpointStore::open_writer(root, options);
  } catch (const NotWritable& error) {
    fail<StorageError>("{} is not writable for this user: {}; make it so, or choose another {}",
                       root.string(), std::strerror(error.error()), key);
  }
}

bool is_of_storage(const std::exception& error) {
  return ending_of(error).code == ExitCode::storage;
}

/// Of rank 0. No store where storage fails and nobody can tell where local checkpoints are.
struct OpenedLocal {
  std::optional<CheckpointStore> store;
  bool is_writable = false;
  std::string probe;
};

OpenedLocal open_local_on_first(const Peers& peers, const CheckpointStore& durable,
                                const fs::path& local, const checkpoint::StoreOptions& options) {
  const std::optional<fs::path> before = recorded_local_checkpoints(durable.root());
  std::optional<fs::path> root;
  try {
    root = choose_local_checkpoints(durable.root(), local, before);
    OpenedLocal opened{.store = open_writer(*root, options, "checkpoint.local.directory"),
                       .is_writable = true,
                       .probe = {}};
    if (peers.world().place().size > 1) opened.probe = new_probe(*root);
    return opened;
  } catch (const checkpoint::LockHeld&) {
    throw;  // by somebody who may save there
  } catch (const std::exception& error) {
    const auto goes_on = [&] {
      if (!durable.list().empty()) return true;
      return root && !CheckpointStore::open_reader(*root, options).list().empty();
    };
    if (!is_of_storage(error) || !goes_on()) throw;
    log::warning("{}", without_local_saves(ending_of(error).text, durable.root()));
  }
  // What comes back later, and is not gone on from now, has been overtaken.
  if (root != before) return {};
  return {.store = CheckpointStore::open_reader(*root, options), .is_writable = false, .probe = {}};
}

CheckpointTiers with_local(const Peers& peers, CheckpointStore durable, const fs::path& local,
                           const checkpoint::StoreOptions& options) {
  OpenedLocal opened =
      peers.is_first() ? open_local_on_first(peers, durable, local, options) : OpenedLocal{};
  {
    const World::LongWait patience(peers.world());
    const std::string mine = opened.store ? opened.store->root().filename().string() : "";
    const std::string name = peers.text_of_first(mine, "opening of local checkpoints");
    if (name.empty()) return CheckpointTiers(std::move(durable));
    if (!opened.store) {
      opened.store.emplace(CheckpointStore::open_reader(fs::absolute(local) / name, options));
    }
  }
  const fs::path root = opened.store->root();
  CheckpointTiers tiers(std::move(durable), std::move(opened.store));
  if (peers.of_first(opened.is_writable ? 1 : 0, "opening of local checkpoints") == 0) {
    tiers.stop_local_saves();
    return tiers;
  }
  const Named named{"checkpoint.local.directory", local.string(),
                    ", or leave checkpoint.local out"};
  const fs::path& of_run = tiers[Tier::durable].root();
  require_seen_by_all(peers, root, opened.probe, named, [&] {
    if (root != recorded_local_checkpoints(of_run)) remove_tree(root);
  });
  if (peers.is_first()) record_local_checkpoints(of_run, root);
  return tiers;
}

}  // namespace

CheckpointTiers open_checkpoints(const Recipe& recipe, const Peers& peers,
                                 const fs::path& directory,
                                 const std::function<void()>& when_held) {
  const fs::path root = directory / "checkpoints";
  const checkpoint::StoreOptions options = store_options(recipe.checkpoint);
  CheckpointStore durable = peers.first_then_others(
      [&] {
        return peers.is_first() ? open_writer(root, options, "run.output_dir")
                                : CheckpointStore::open_reader(root, options);
      },
      "opening of checkpoints");
  when_held();
  const bool shows = peers.is_first() && peers.world().place().size > 1;
  require_seen_by_all(peers, durable.root(), shows ? new_probe(durable.root()) : "",
                      {"run.output_dir", directory.string(), ""}, [] {});
  const std::optional<std::string>& local = recipe.checkpoint.local.directory();
  checkpoint::StoreOptions local_options = options;
  local_options.keep_last = recipe.checkpoint.local.keep_latest();
  local_options.keep_every = 0;
  local_options.background_share = 1;  // there is no disk to spare
  if (!local) return CheckpointTiers(std::move(durable));
  return with_local(peers, std::move(durable), *local, local_options);
}

namespace {

struct Candidate {
  std::uint64_t step = 0;
  Tier tier = Tier::durable;
  bool operator==(const Candidate&) const = default;
};

/// On rank 0: those of either kind, in no order. Local storage that nobody can look at has none.
std::vector<Candidate> all_candidates(const CheckpointTiers& tiers, bool& drops_local) {
  std::vector<Candidate> found;
  for (const Tier tier : {Tier::durable, Tier::local}) {
    if (tier == Tier::local && !tiers.has_local()) continue;
    try {
      for (const std::uint64_t step : tiers[tier].list()) found.push_back({step, tier});
    } catch (const std::exception& error) {
      if (tier == Tier::durable || found.empty() || !is_of_storage(error)) throw;
      drops_local = true;
      log::warning("{}", without_local_saves(ending_of(error).text, tiers[Tier::durable].root()));
    }
  }
  return found;
}

/// Those that rank 0 finds, newest first; of two of one step the durable one. Others have none.
/// Collective.
std::vector<Candidate> candidates(const Peers& peers, CheckpointTiers& tiers) {
  bool drops_local = false;
  std::vector<Candidate> found;
  if (peers.is_first()) found = all_candidates(tiers, drops_local);
  if (tiers.has_local() && peers.of_first(drops_local ? 1 : 0, "local checkpoints") == 1) {
    tiers.drop_local();
  }
  std::ranges::stable_sort(found, std::greater(), &Candidate::step);
  return found;
}

void say_not_valid(const Candidate& at, std::span<const checkpoint::Problem> problems) {
  log::warning("{}checkpoint of step {} is not used: {}", at.tier == Tier::local ? "local " : "",
               at.step, checkpoint::to_string(problems));
}

/// What is not valid of it counts in `newest`.
void leave_out(NewestCheckpoint& newest, const Candidate& at,
               std::span<const checkpoint::Problem> problems) {
  ++newest.newer_and_not_valid;
  newest.is_unread =
      newest.is_unread || std::ranges::any_of(problems, &checkpoint::Problem::is_unread);
  newest.durable_not_valid = newest.durable_not_valid || at.tier == Tier::durable;
  newest.local_is_unread =
      newest.local_is_unread ||
      (at.tier == Tier::local && std::ranges::any_of(problems, &checkpoint::Problem::is_unread));
}

/// The first valid one of rank 0's `found`; `newest` counts what was left out before. Collective.
NewestCheckpoint first_valid(const Peers& peers, const CheckpointTiers& tiers,
                             const std::vector<Candidate>& found, VerifyLevel level,
                             NewestCheckpoint newest = {}) {
  const World::LongWait patience(peers.world());  // hashing takes the time that it takes
  struct Next {
    bool is_there = false;
    Candidate at;
  };
  for (std::size_t n = 0;; ++n) {
    const Next next = peers.of_first(n < found.size() ? Next{true, found[n]} : Next(),
                                     "checkpoint that is checked");
    if (!next.is_there) return newest;
    const auto problems = tiers[next.at.tier].verify(next.at.step, level, peers.group());
    if (problems.empty()) {
      newest.step = next.at.step;
      newest.tier = next.at.tier;
      newest.is_checked = level == VerifyLevel::hash;
      return newest;
    }
    checkpoint::require_rights(tiers[next.at.tier].directory_of(next.at.step), problems);
    if (peers.is_first()) say_not_valid(next.at, problems);
    leave_out(newest, next.at, problems);
  }
}

void require_one(const CheckpointTiers& tiers, const NewestCheckpoint& newest) {
  require<StorageError>(newest.step || !newest.is_unread,
                        "{}: no checkpoint to resume from could be read; run again when the "
                        "storage is well",
                        tiers[Tier::durable].root().string());
  require<CheckpointError>(newest.step.has_value(),
                           "{}: no valid checkpoint to resume from; restore one, or choose "
                           "another run.output_dir",
                           tiers[Tier::durable].root().string());
}

/// On rank 0, before the data, which may take hours: that the run may go on from it, or begin.
void require_beginning(const Recipe& recipe, const CheckpointTiers& tiers,
                       const NewestCheckpoint& newest) {
  const Resume resume = recipe.checkpoint.resume();
  // What was saved durably must not be lost without a word; what was saved locally may be, but not
  // for storage that is well again later.
  const bool must = resume.mode == Resume::Mode::must || resume.mode == Resume::Mode::step;
  if (must || newest.durable_not_valid || newest.local_is_unread) require_one(tiers, newest);
  require<RecipeError>(!newest.step || resume.mode != Resume::Mode::never,
                       "{} holds checkpoints and checkpoint.resume is never; choose another "
                       "run.output_dir",
                       tiers[newest.tier].root().string());
  if (newest.step) {
    check_same_function(tiers[newest.tier], *newest.step, recipe);
    check_same_batches(tiers[newest.tier], *newest.step, recipe);
  }
  if (!newest.step) check_first_weights(recipe);
}

}  // namespace

NewestCheckpoint newest_valid(const Peers& peers, CheckpointTiers& tiers,
                              const std::function<bool(std::uint64_t step, Tier)>& first) {
  std::vector<Candidate> found = candidates(peers, tiers);
  if (first) {
    std::ranges::stable_partition(found,
                                  [&](const Candidate& one) { return first(one.step, one.tier); });
  }
  return first_valid(peers, tiers, found, VerifyLevel::hash);
}

NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   CheckpointTiers& tiers) {
  const Resume resume = recipe.checkpoint.resume();
  const bool mine = peers.is_first() && goes_back_to(resume, tiers);
  const bool goes_back = peers.of_first(mine ? 1 : 0, "where the run begins") == 1;
  NewestCheckpoint newest;
  if (goes_back) {
    newest = named_checkpoint(peers, tiers, resume.step);
  } else {
    const std::vector<Candidate> found = candidates(peers, tiers);
    // With a durable one a run goes on, or ends with an error. Where there are local ones alone it
    // may have to begin, which has to be known before anything is made of what it begins with.
    const bool has_durable =
        std::ranges::any_of(found, [](const Candidate& one) { return one.tier == Tier::durable; });
    const bool loads_first = peers.of_first(has_durable ? 1 : 0, "kinds of checkpoints") == 1;
    newest =
        first_valid(peers, tiers, found, loads_first ? VerifyLevel::header : VerifyLevel::hash);
  }
  if (peers.is_first()) require_beginning(recipe, tiers, newest);
  return newest;
}

NewestCheckpoint older_checkpoint(const Recipe& recipe, const Peers& peers, CheckpointTiers& tiers,
                                  NewestCheckpoint damaged,
                                  std::span<const checkpoint::Problem> problems) {
  const Candidate at{*damaged.step, damaged.tier};
  checkpoint::require_rights(tiers[at.tier].directory_of(at.step), problems);
  if (peers.is_first()) say_not_valid(at, problems);
  leave_out(damaged, at, problems);
  damaged.step.reset();
  std::vector<Candidate> found = candidates(peers, tiers);
  const auto here = std::ranges::find(found, at);
  if (here != found.end()) found.erase(found.begin(), here + 1);
  const NewestCheckpoint newest = first_valid(peers, tiers, found, VerifyLevel::hash, damaged);
  require_one(tiers, newest);  // on all ranks: none of them may begin any more
  if (peers.is_first()) require_beginning(recipe, tiers, newest);
  return newest;
}

std::string without_local_saves(std::string_view reason, const fs::path& durable) {
  return fmt::format("{}. The run goes on, and saves in {} alone", reason, durable.string());
}

void leave_local_checkpoints(const CheckpointTiers& tiers) {
  if (!tiers.has_local()) leave_recorded_checkpoints(tiers[Tier::durable].root());
}

void remove_local_checkpoints(const CheckpointTiers& tiers) {
  if (!tiers.has_local()) return;
  const fs::path& root = tiers[Tier::local].root();
  const fs::path& durable = tiers[Tier::durable].root();
  try {
    // Nothing else is ever removed from a place that others may use, too.
    const bool is_own = recorded_local_checkpoints(durable) == root &&
                        checkpoint::is_nonce(root.filename().string());
    if (!is_own) return;
    forget_local_checkpoints(durable);
    remove_tree(root);
  } catch (const StorageError& error) {
    log::warning("{}; the run needs its local checkpoints no more", error.what());
  }
}

}  // namespace llmtrain::train
