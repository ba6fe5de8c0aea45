#include "lib/train/peers.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "lib/base/activity.hpp"
#include "lib/base/ending.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/program_files.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/train/stall_watch.hpp"

namespace llmtrain::train {

namespace {

// As long as a launcher on a loaded machine may take to end the others.
constexpr TimeLimit kWordForAll{10};
// A rank whose recipe is refused leaves the word to rank 0 for so long, and says then what is
// wrong: whoever waits for it must still be there.
constexpr TimeLimit kUntilAllMet = kWordForAll + TimeLimit{5};

}  // namespace

Peers::Peers(World& world, std::string_view recipe) : world_(&world) {
  const TimeLimit patience = world.patience();
  world.set_patience(std::max(patience, kUntilAllMet));
  std::vector<int> ranks(static_cast<std::size_t>(world.place().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  all_ = world.make_group("job", ranks, world.place().rank);
  check_same_program("");
  check_same_recipe(recipe);
  world.set_patience(patience);
}

namespace {

// Of a line of a recipe that was written out, the key and its value, without where they came from.
std::string_view without_origin(std::string_view line) {
  return line.substr(0, line.rfind("  # "));
}

std::string without_origins(std::string_view recipe) {
  std::string values;
  while (!recipe.empty()) {
    const std::string_view line = recipe.substr(0, recipe.find('\n'));
    recipe.remove_prefix(std::min(recipe.size(), line.size() + 1));
    values.append(without_origin(line)).push_back('\n');
  }
  return values;
}

// "lr: 1e-3, rank 0: 3e-4", of the first line in which two texts differ but for origins.
std::string first_difference(std::string_view text, std::string_view of_first) {
  const auto take_line = [](std::string_view& rest) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return line.substr(std::min(line.size(), line.find_first_not_of(' ')));
  };
  while (!text.empty() || !of_first.empty()) {
    const std::string_view line = take_line(text), first = take_line(of_first);
    if (without_origin(line) == without_origin(first)) continue;
    return fmt::format("{}, rank 0: {}", line.empty() ? "nothing" : line,
                       first.empty() ? "nothing" : first);
  }
  return "";
}

}  // namespace

void Peers::check_same_program(std::string_view device) const {
  std::string mine;
  for (const ProgramFile& file : program_files()) {
    mine += fmt::format("{} {}\n", file.name, to_hex(file.hash));
  }
  if (!device.empty()) mine += fmt::format("device {}\n", device);
  const std::vector<std::string> all = texts_of_all(mine, "comparison of programs");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    require<RanksDiffer>(
        all[rank] == all[0],
        "rank {} runs another llmtrain than rank 0 ({}); start the same file everywhere", rank,
        first_difference(all[rank], all[0]));
  }
}

void Peers::check_same_data(std::string_view fingerprint, std::string_view held_out) const {
  const auto check = [this](std::string_view mine, std::string_view what, std::string_view why) {
    const std::vector<std::string> all =
        texts_of_all(mine, fmt::format("comparison of {} data", what));
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      require<RanksDiffer>(
          all[rank] == all[0],
          "rank {} has other {} data than rank 0 ({}, rank 0: {}): {}; let all ranks read the same "
          "files",
          rank, what, all[rank], all[0], why);
    }
  };
  check(fingerprint, "training", "another text, tokenizer or packing");
  check(held_out, "held-out", "another text for evaluations");
}

void Peers::check_same_recipe(std::string_view recipe) const {
  // The same values from another place are the same recipe.
  const std::vector<Hash128> all =
      of_all(hash128(without_origins(recipe)), "comparison of recipes");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string first = text_of(0, recipe, "recipe of a rank");
    const std::string other = text_of(static_cast<int>(rank), recipe, "recipe of a rank");
    fail<RanksDiffer>(
        "rank {} has another recipe than rank 0 ({}; as a whole {}, rank 0: {}); start all with "
        "the same file and overrides",
        rank, first_difference(other, first), to_hex(all[rank]), to_hex(all[0]));
  }
}

namespace {

// Nobody gives up much later than the first of those who wait for one rank.
constexpr TimeLimit kFirstWord{2};

void leave_the_word(const World& world, TimeLimit limit) {
  std::this_thread::sleep_for(std::min(limit, world.patience()));
}

// Of two ranks each names the other: only if both wait is there anything more to be heard.
TimeLimit first_word(const World& world) {
  return world.place().size == 2 ? std::min(kFirstWord, world.patience() / 8) : kFirstWord;
}

// What every rank may know, rank 0 says first, and ends the others with it.
[[noreturn]] void end_all_alike(World& world, const Ending& ending, bool all_know) {
  if (world.place().rank != 0) leave_the_word(world, all_know ? kWordForAll : first_word(world));
  log::error("{}", ending.text);
  world.abort(static_cast<int>(ending.code));
}

// The last of them stands for all where people look; the log has the others.
void say_last_collectives(const World& world) {
  const std::vector<CollectiveRecord> calls = world.last_collectives();
  for (const CollectiveRecord& call : calls) {
    log::note(fmt::format("last collectives of this rank: {}", to_string(call)));
  }
  if (!calls.empty()) log::error("last collectives of this rank: {}", to_string(calls.back()));
}

}  // namespace

// Each rank knows for whom it waits, and some wait for one that waits itself: all are heard.
void end_all_but_lost(World& world, std::string_view message) {
  log::error("{}", message);
  log::error("this rank was {}", activity::text());
  note_stacks("another rank does not answer");
  say_last_collectives(world);
  leave_the_word(world, first_word(world));
  world.abort(static_cast<int>(ExitCode::peer_lost));
}

ExitCode run_as_rank(const std::function<ExitCode(World&)>& body) {
  leave_on_stop_signals(this_launch().place.size > 1);
  log::set_rank(this_launch().place.rank);  // in the errors of those who do not meet
  const std::unique_ptr<World> world = World::join(this_launch());
  log::set_rank(world->place().rank);
  if (world->place().size == 1) return body(*world);
  try {
    const ExitCode code = body(*world);
    world->leave();
    return code;
  } catch (const std::exception& error) {
    const Ending ending = ending_of(error);
    const bool differ = dynamic_cast<const RanksDiffer*>(&error) != nullptr;
    if (ending.code == ExitCode::peer_lost && !differ) end_all_but_lost(*world, ending.text);
    end_all_alike(*world, ending, differ || ending.code == ExitCode::recipe);
  }
}

}  // namespace llmtrain::train
