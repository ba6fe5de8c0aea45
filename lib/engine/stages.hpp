#pragma once
/// The stages of a pipeline: which part of the decoder each is, and which of them a rank has.

#include <string>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/models/decoder.hpp"
#include "lib/parallel/messages.hpp"

namespace llmtrain::engine {

struct PipelineOptions {
  std::string schedule = "1f1b";  // a row of parallel::schedules()
  int stages_per_rank = 1;
  /// Blocks of each stage; empty: as even as whole blocks allow, the larger stages first.
  std::vector<std::int64_t> layers = {};
  /// For which a schedule is ordered that is made by costs.
  parallel::ActionCosts costs = {};
};

/// Stage s has blocks [first_block(s), first_block(s + 1)); the first stage embeds, too, and the
/// last one has the final norm and the head.
class Stages {
 public:
  Stages(const Mesh& mesh, const PipelineOptions& options, std::int64_t num_blocks);

  int count() const { return shape_.num_stages; }
  /// Whether there are other ranks' stages.
  bool divided() const { return shape_.num_ranks > 1; }
  int first_block(int stage) const { return first_blocks_[static_cast<std::size_t>(stage)]; }
  int rank_of(int stage) const;
  bool is_here(int stage) const { return rank_of(stage) == rank_; }
  int last() const { return count() - 1; }
  bool is_last(int stage) const { return stage == last(); }
  int of_block(int block) const;
  bool has_block(int block) const { return is_here(of_block(block)); }
  models::DecoderPlaces places() const;
  /// The schedule's shape for a step.
  parallel::ScheduleShape shape(int num_micro_batches) const;
  const parallel::ScheduleRow& schedule() const { return *schedule_; }

 private:
  const parallel::ScheduleRow* schedule_;
  parallel::ScheduleShape shape_;
  int rank_;
  std::vector<int> first_blocks_;  // and their number behind
};

}  // namespace llmtrain::engine
