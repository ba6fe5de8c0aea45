#include "lib/train/peers.hpp"

#include <chrono>
#include <numeric>
#include <thread>

#include "lib/base/activity.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/stall_watch.hpp"

namespace llmtrain::train {

Peers::Peers(World& world, std::string_view recipe) : world_(&world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.place().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  all_ = world.make_group("job", ranks, world.place().rank);
  check_same(recipe);
}

void Peers::check_same(std::string_view recipe) const {
  std::string build;
  for (const auto& [key, value] : build_facts()) build += fmt::format("{}: {}\n", key, value);
  struct Facts {
    Hash128 recipe, build;
  };
  const std::vector<Facts> all =
      all_->gather_values(Facts{hash128(recipe), hash128(build)}, "comparison of ranks");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    require<CommError>(all[rank].build == all[0].build,
                       "rank {} runs another llmtrain than rank 0; start the same file everywhere",
                       rank);
    require<CommError>(all[rank].recipe == all[0].recipe,
                       "rank {} has another recipe than rank 0; start all with the same file and "
                       "overrides",
                       rank);
  }
}

void end_all(World& world, ExitCode code, std::string_view message) {
  constexpr std::chrono::seconds kFirstWord{2};
  if (code == ExitCode::peer_lost) {
    // Each rank knows for whom it waits, and some wait for one that waits itself: all are heard.
    log::error("{}", message);
    log::error("this rank was {}", activity::text());
    note_stacks("another rank does not answer");
    for (const CollectiveRecord& call : world.last_collectives()) {
      log::error("last collectives of this rank: {}", to_string(call));
    }
    std::this_thread::sleep_for(kFirstWord);
  } else {
    if (world.place().rank != 0) std::this_thread::sleep_for(kFirstWord);
    log::error("{}", message);
  }
  world.abort(static_cast<int>(code));
}

ExitCode run_as_rank(const std::function<ExitCode(World&)>& body) {
  log::set_rank(this_launch().place.rank);  // in the errors of those who do not meet
  const std::unique_ptr<World> world = World::join(this_launch());
  log::set_rank(world->place().rank);
  if (world->place().size == 1) return body(*world);
  try {
    const ExitCode code = body(*world);
    world->leave();
    return code;
  } catch (const Error& error) {
    end_all(*world, error.exit_code(), error.what());
  } catch (const std::exception& error) {
    end_all(*world, ExitCode::runtime, fmt::format("unexpected: {}", error.what()));
  }
}

}  // namespace llmtrain::train
