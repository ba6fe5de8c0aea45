// doctor RECIPE: which ranks share what, and on which machines they are.
#include <cstdio>
#include <numeric>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/rank_map.hpp"
#include "lib/plan/machine.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::app {

namespace {

/// Host names of all ranks; collective.
std::vector<std::string> hosts_of(World& world) {
  std::vector<int> all(static_cast<std::size_t>(world.place().size));
  std::iota(all.begin(), all.end(), 0);
  const auto job = world.make_group("job", all, world.place().rank);
  return job->gather_texts(plan::machine_facts().host, "hosts of ranks");
}

std::string assumed_text(train::Recipe& recipe, const AssumedJob& assumed) {
  const std::string_view rest = recipe.parallelism.rest_axis();
  require<RecipeError>(assumed.ranks || rest.empty(),
                       "parallelism.{} takes the rest of the ranks: say how many there are with "
                       "--ranks, or start as many with mpirun",
                       rest);
  const int ranks = assumed.ranks.value_or(recipe.parallelism.least_ranks());
  const int of_node = assumed.ranks_per_node.value_or(kUsualRanksPerNode);
  recipe.enter({.size = ranks, .local_size = ranks});
  return rank_map_text(recipe.mesh_shape(), assumed_places(ranks, of_node)) +
         fmt::format(
             "assumed: {} rank{}{}, {} on each machine (--ranks, --ranks-per-node); under "
             "mpirun or srun those that are there\n",
             ranks, ranks == 1 ? "" : "s", assumed.ranks ? "" : ", as the recipe names", of_node);
}

}  // namespace

ExitCode show_layout(const RecipeArguments& arguments, const AssumedJob& assumed) {
  return train::run_as_rank([&](World& world) {
    const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
    std::string text;
    if (world.place().size == 1) {
      text = assumed_text(*recipe, assumed);
    } else {
      require<RecipeError>(!assumed.ranks && !assumed.ranks_per_node,
                           "--ranks and --ranks-per-node are for one process: here are {} ranks on "
                           "their machines",
                           world.place().size);
      recipe->enter(world.place());
      const MeshShape shape = recipe->mesh_shape();
      text = rank_map_text(shape, places_on(hosts_of(world)));
    }
    if (world.place().rank == 0) std::fwrite(text.data(), 1, text.size(), stdout);
    return ExitCode::done;
  });
}

}  // namespace llmtrain::app
