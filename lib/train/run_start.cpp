#include "lib/train/run_start.hpp"

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/train/data_stages.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/run_directory.hpp"

namespace llmtrain::train {

checkpoint::CheckpointStore open_checkpoints(const Recipe& recipe, const Peers& peers,
                                             const std::filesystem::path& directory) {
  const std::filesystem::path root = directory / "checkpoints";
  const checkpoint::StoreOptions options = store_options(recipe.checkpoint);
  return peers.first_then_others(
      [&] {
        return peers.is_first() ? checkpoint::CheckpointStore::open_writer(root, options)
                                : checkpoint::CheckpointStore::open_reader(root, options);
      },
      "opening of checkpoints");
}

NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   const checkpoint::CheckpointStore& store) {
  NewestCheckpoint found;
  const Resume mode = recipe.checkpoint.resume();
  if (peers.is_first()) {
    const auto newest = store.newest_valid(checkpoint::VerifyLevel::hash);
    for (const checkpoint::Rejected& rejected : newest.rejected) {
      log::warning("checkpoint of step {} is not used: {}", rejected.step, rejected.reason);
    }
    const bool may_begin = mode != Resume::must && newest.rejected.empty();
    require<CheckpointError>(newest.step || may_begin,
                             "{}: no valid checkpoint to resume from; restore one, or choose "
                             "another run.output_dir",
                             store.root().string());
    require<RecipeError>(!newest.step || mode != Resume::never,
                         "{} holds checkpoints and checkpoint.resume is never; choose another "
                         "run.output_dir",
                         store.root().string());
    found = {newest.step, std::ssize(newest.rejected)};
    if (!found.step) check_first_weights(recipe);  // before the data, which may take hours
  }
  return peers.of_first(found, "checkpoint to resume from");
}

RunIdentity identity_of(const Recipe& recipe, const Corpus& corpus, std::uint64_t epoch_size,
                        const std::string& product_choices) {
  return {.seed = recipe.run.seed(),
          .epoch_size = epoch_size,
          .data_fingerprint = corpus.fingerprint,
          .recipe = recipe::dump(recipe),
          .environment = environment(recipe.threads(), recipe.run.determinism()),
          .product_choices = product_choices};
}

engine::EnginePlace place_in_job(RunDevice& device, const Recipe& recipe, const Peers& peers) {
  engine::EnginePlace place = device.place();
  place.mesh = recipe.mesh_shape();
  place.rank = peers.world().place().rank;
  place.communicators = communicators_of(peers.world(), device, recipe);
  return place;
}

void log_launches(const Device& device, const plan::Plan& plan) {
  if (!device.backend().can_record()) return;
  if (!plan.records_launches) {
    const bool layout = plan.determinism == kernels::Determinism::layout;
    log::info("launches are made one by one: {}",
              layout ? "run.determinism is layout" : "run.cuda_graphs is off");
  } else if (!plan.not_recorded.empty()) {
    log::info("launches are made one by one in {}, where ranks exchange", plan.not_recorded);
  }
}

void write_start(const std::filesystem::path& directory, const Recipe& recipe,
                 const RunPlan& planned, const RunIdentity& identity, const Corpus& corpus) {
  warn_of_unreached_stages(recipe);
  write_file_atomic(directory / "resolved.yaml", identity.recipe);
  data::save_tokenizer(*corpus.tokenizer, directory);
  write_run_facts(directory, recipe, planned.plan, identity.environment);
  write_plan(directory, planned.plan, planned.time);
  if (!identity.product_choices.empty()) {
    write_file_atomic(directory / "products.txt", identity.product_choices);
  }
  if (corpus.cleaning) write_file_atomic(directory / "cleaning.json", corpus.cleaning->json());
}

}  // namespace llmtrain::train
