// Loads checkpoints into the layout of the recipe and saves them again as they then are.
//
//   reshard_probe RECIPE STEP FROM,FROM... TO,TO... [override...]
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/checked_load.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "lib/train/device.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain {

namespace {

std::vector<std::string> divided(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

ExitCode probe(const std::vector<std::string>& arguments, World& world) {
  const auto recipe = train::load_recipe(
      arguments[0], std::vector<std::string>(arguments.begin() + 4, arguments.end()));
  recipe->enter(world.place());
  const auto step = static_cast<std::uint64_t>(std::stoull(arguments[1]));
  const std::vector<std::string> from = divided(arguments[2]), to = divided(arguments[3]);
  train::RunDevice device(*recipe);
  engine::EnginePlace place = device.place();
  place.mesh = recipe->mesh_shape();
  place.rank = world.place().rank;
  place.communicators = train::communicators_of(world, device, *recipe);
  engine::Engine engine(place, recipe->engine_options());
  engine.initialize();
  const bool first = place.rank == 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto source = checkpoint::CheckpointStore::open_reader(from[i]);
    const checkpoint::RunState saved = source.load(step).manifest().run;
    const train::RunIdentity identity{.seed = saved.rng_seed,
                                      .epoch_size = 1u << 30,
                                      .data_fingerprint = saved.data_cursor.fingerprint};
    const train::CheckedLoad loaded =
        train::load_while_checking(source, step, engine, identity, engine.mesh().world());
    require(loaded.state.has_value(), "{}", checkpoint::to_string(loaded.problems));
    engine.mesh().world().barrier("reshard");
    auto target = first ? checkpoint::CheckpointStore::open_writer(to[i])
                        : checkpoint::CheckpointStore::open_reader(to[i]);
    target.save(step, train::boxes_to_save(engine),
                train::run_state(engine, *loaded.state, identity), engine.mesh().world());
  }
  return ExitCode::done;
}

}  // namespace

}  // namespace llmtrain

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) {
    std::fputs("usage: reshard_probe RECIPE STEP FROM,... TO,... [override...]\n", stderr);
    return 2;
  }
  try {
    return static_cast<int>(llmtrain::train::run_as_rank(
        [&](llmtrain::World& world) { return llmtrain::probe(arguments, world); }));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
