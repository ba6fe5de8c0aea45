#include "lib/engine/stages.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::engine {

Stages::Stages(const Mesh& mesh, const PipelineOptions& options, std::int64_t num_blocks)
    : schedule_(&parallel::find_schedule(options.schedule)), rank_(mesh.index(Axis::pp)) {
  shape_.num_ranks = mesh.size(Axis::pp);
  shape_.num_stages = divided() ? shape_.num_ranks * options.stages_per_rank : 1;
  shape_.costs = options.costs;
  const bool given = divided() && !options.layers.empty();
  require(!given || std::ssize(options.layers) == count(), "{} numbers for {} stages",
          options.layers.size(), count());
  std::int64_t first = 0;
  for (int s = 0; s <= count(); ++s) {
    first_blocks_.push_back(
        static_cast<int>(given ? first : (num_blocks * s + count() - 1) / count()));
    if (given && s < count()) first += options.layers[static_cast<std::size_t>(s)];
  }
  require(first_blocks_.back() == num_blocks, "stages of {} blocks for a model of {}",
          first_blocks_.back(), num_blocks);
}

int Stages::rank_of(int stage) const {
  return divided() ? schedule_->rank_of_stage(shape_, stage) : 0;
}

int Stages::of_block(int block) const {
  int stage = 0;
  while (first_block(stage + 1) <= block) ++stage;
  return stage;
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
