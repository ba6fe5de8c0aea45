#include "lib/train/run_start.hpp"

#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/data_stages.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/run_directory.hpp"

namespace llmtrain::train {

NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   const checkpoint::CheckpointStore& store) {
  NewestCheckpoint found;
  if (peers.is_first()) {
    const auto newest = store.newest_valid(checkpoint::VerifyLevel::hash);
    for (const checkpoint::Rejected& rejected : newest.rejected) {
      log::warning("checkpoint of step {} is not used: {}", rejected.step, rejected.reason);
    }
    const bool may_begin = recipe.checkpoint.resume() != Resume::must && newest.rejected.empty();
    require<CheckpointError>(newest.step || may_begin,
                             "{}: no valid checkpoint to resume from; restore one, or choose "
                             "another run.output_dir",
                             store.root().string());
    found = {newest.step, std::ssize(newest.rejected)};
    if (!found.step) check_first_weights(recipe);  // before the data, which may take hours
  }
  return peers.of_first(found, "checkpoint to resume from");
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
