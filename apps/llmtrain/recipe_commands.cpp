// run, plan, check, schema, keys, recipes.
#include <cstdio>

#include "apps/llmtrain/commands.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/comm/job_place.hpp"
#include "lib/engine/geometry.hpp"
#include "lib/parallel/timeline.hpp"
#include "lib/plan/plan.hpp"
#include "lib/plan/plan_text.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/recipe/json_schema.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/train/data_stages.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/run_start.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::app {

namespace {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

ExitCode run(const RecipeArguments& arguments) {
  return train::run_as_rank([&](World& world) {
    const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
    recipe->enter(world.place());
    return train::run(*recipe, arguments.recipe, world);
  });
}

namespace {

void write_timeline(const train::RunPlan& planned, const std::filesystem::path& file) {
  require<RecipeError>(planned.pipeline.has_value(),
                       "--timeline shows a pipeline, and parallelism.pp is 1");
  require<RecipeError>(planned.time.has_value(),
                       "--timeline needs times: run `llmtrain doctor`, or name a --profile");
  const parallel::Schedule& schedule = planned.pipeline->schedule;
  const parallel::Simulation& simulation = *planned.time->step.pipeline;
  const std::filesystem::path kind = file.extension();
  require<RecipeError>(kind == ".svg" || kind == ".txt" || kind == ".json",
                       "--timeline {}: end the name in .svg, .txt or .json", file.string());
  constexpr int kColumns = 160;
  write_file_atomic(file, kind == ".svg" ? parallel::timeline_svg(schedule, simulation)
                          : kind == ".txt"
                              ? parallel::timeline_text(schedule, simulation, kColumns)
                              : parallel::timeline_trace(
                                    schedule, parallel::derive_messages(schedule), simulation));
}

}  // namespace

// Of the processes that a launcher has started one speaks for all.
ExitCode plan(const RecipeArguments& arguments, const PlanArguments& what) {
  if (this_launch().place.rank > 0) return ExitCode::done;
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  train::check_first_weights(*recipe, train::output_dir(*recipe, arguments.recipe));
  const std::string_view rest = recipe->parallelism.rest_axis();
  require<RecipeError>(what.ranks || rest.empty() || this_launch().place.size > 1,
                       "parallelism.{} takes the rest of the ranks: say how many there are with "
                       "--ranks",
                       rest);
  const Launch& launch = this_launch();
  const int least = recipe->parallelism.least_ranks();
  const int ranks = what.ranks.value_or(launch.place.size > 1 ? launch.place.size : least);
  recipe->enter({.size = ranks, .local_size = ranks});
  train::log_idle_layout_keys(*recipe);
  const engine::BatchGeometry geometry = recipe->geometry();
  train::RunPlan planned = train::plan_job(*recipe, geometry, what.profile);
  train::log_idle_offload(*recipe, planned.plan);
  if (what.now) train::measure_speed_now(planned);
  if (what.timeline) write_timeline(planned, *what.timeline);
  print(what.json ? plan::to_json(planned.plan, planned.context())
                  : plan::to_text(planned.plan, planned.context()));
  return planned.fits() ? ExitCode::done : ExitCode::does_not_fit;
}

ExitCode check(const RecipeArguments& arguments, bool resolved) {
  const auto recipe = train::load_recipe(arguments.recipe, arguments.overrides);
  const std::string_view rest = recipe->parallelism.rest_axis();
  if (rest.empty()) {
    recipe->enter({.size = recipe->parallelism.least_ranks()});
  } else {
    plan::check_parameters(recipe->engine_options(), {}, recipe->run.named_device());
  }
  train::check_first_weights(*recipe, train::output_dir(*recipe, arguments.recipe));
  train::warn_of_unreached_stages(*recipe);
  if (rest.empty()) train::log_idle_layout_keys(*recipe);
  print(resolved ? recipe::dump(*recipe)
                 : fmt::format("{}: no issues{}\n", arguments.recipe.string(),
                               rest.empty() ? ""
                                            : fmt::format("; parallelism.{} takes the rest of the "
                                                          "ranks: see `llmtrain plan --ranks N`",
                                                          rest)));
  return ExitCode::done;
}

ExitCode schema() {
  const train::Recipe recipe;
  print(recipe::json_schema(recipe, "llmtrain recipe"));
  return ExitCode::done;
}

ExitCode help_key(const std::string& path) {
  const train::Recipe recipe;
  const auto text = recipe::help(recipe, path);
  require<RecipeError>(text.has_value(), "no key or section {}; `llmtrain keys` lists all", path);
  print(*text);
  return ExitCode::done;
}

ExitCode list_recipes() {
  for (const std::string_view name : train::builtin_recipe_names()) {
    const std::string text = *train::builtin_recipe(name);
    // The second line of every shipped recipe says what it is for.
    const std::size_t begin = text.find('\n') + 1;
    print(fmt::format("{:<16} {}\n", name, text.substr(begin, text.find('\n', begin) - begin)));
  }
  return ExitCode::done;
}

namespace {

std::string shipped(const std::string& name) {
  const auto text = train::builtin_recipe(name);
  require<RecipeError>(text.has_value(), "no shipped recipe {}; `llmtrain recipes ls` lists them",
                       name);
  return *text;
}

}  // namespace

ExitCode print_recipe(const std::string& name) {
  print(shipped(name));
  return ExitCode::done;
}

ExitCode copy_recipe(const std::string& name, const std::filesystem::path& to) {
  const std::string text = shipped(name);
  require<RecipeError>(!std::filesystem::exists(to), "{} exists and is left as it is", to.string());
  write_file_atomic(to, text);
  return ExitCode::done;
}

}  // namespace llmtrain::app
