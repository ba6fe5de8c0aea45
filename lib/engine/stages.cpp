#include "lib/engine/stages.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::engine {

Stages::Stages(const Mesh& mesh, const PipelineOptions& options, std::int64_t num_blocks)
    : schedule_(&parallel::find_schedule(options.schedule)),
      rank_(mesh.index(Axis::pp)),
      num_blocks_(num_blocks) {
  shape_.num_ranks = mesh.size(Axis::pp);
  shape_.num_stages = divided() ? shape_.num_ranks * options.stages_per_rank : 1;
  require<RecipeError>(num_blocks >= count(),
                       "parallelism.pp {} with {} needs {} stages of at least one block, but "
                       "model.num_hidden_layers is {}",
                       shape_.num_ranks, schedule_->name, count(), num_blocks);
}

int Stages::first_block(int stage) const {
  return static_cast<int>((num_blocks_ * stage + count() - 1) / count());
}

int Stages::rank_of(int stage) const {
  return divided() ? schedule_->rank_of_stage(shape_, stage) : 0;
}

bool Stages::has_block(int block) const {
  for (int s = 0; s < count(); ++s) {
    if (first_block(s) <= block && block < first_block(s + 1)) return is_here(s);
  }
  return false;
}

models::DecoderPlaces Stages::places() const {
  models::DecoderPlaces places{.embedding = rank_of(0), .head = rank_of(last()), .blocks = {}};
  for (int s = 0; s < count(); ++s) {
    places.blocks.insert(places.blocks.end(),
                         static_cast<std::size_t>(first_block(s + 1) - first_block(s)), rank_of(s));
  }
  return places;
}

parallel::ScheduleShape Stages::shape(int num_micro_batches) const {
  parallel::ScheduleShape shape = shape_;
  shape.num_micro_batches = num_micro_batches;
  return shape;
}

}  // namespace llmtrain::engine
