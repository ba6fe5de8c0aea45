#pragma once
/// How many samples each step takes: a pure function of the recipe.

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/engine/sections.hpp"

namespace llmtrain::engine {

class BatchGeometry {
 public:
  /// `data_ranks` share the samples of a step. RecipeError, naming sizes that fit, when their
  /// shares are no whole micro-batches.
  explicit BatchGeometry(const TrainingSection& training, int data_ranks = 1);

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t micro_batch_size() const { return micro_batch_size_; }
  std::int64_t global_batch_size() const { return ramp_.back().batch_size; }

  /// Samples of a step, each size once: those of the ramp, if there is one, and the full one.
  std::vector<std::int64_t> batch_sizes() const;

  /// The greatest number that divides the micro-batches of every step, on all ranks.
  std::int64_t common_micro_batches() const;

  int data_ranks() const { return data_ranks_; }
  /// Samples of step `step`, counted from 1, on all ranks.
  std::int64_t samples_in_step(std::int64_t step) const;
  /// On each rank; rank r of those that share the step takes the r-th so many.
  std::int64_t samples_per_rank(std::int64_t step) const {
    return samples_in_step(step) / data_ranks_;
  }
  /// Samples taken by all steps before `step`.
  std::uint64_t samples_before(std::int64_t step) const;
  std::uint64_t tokens_before(std::int64_t step) const {
    return samples_before(step) * static_cast<std::uint64_t>(seq_len_);
  }
  /// Length of the run as far as `training`, from which this was made, knows it: nothing when it is
  /// given in epochs.
  std::optional<std::int64_t> total_steps(const TrainingSection& training) const;
  /// First number of steps that takes at least `samples`.
  std::int64_t steps_for_samples(std::uint64_t samples) const;

 private:
  struct Level {
    std::int64_t first_step;
    std::int64_t batch_size;
    std::uint64_t samples_before;
  };
  const Level& level_of(std::int64_t step) const;

  std::int64_t seq_len_;
  std::int64_t micro_batch_size_;
  int data_ranks_;
  std::vector<Level> ramp_;  // constant batch sizes, the last one for ever
};

}  // namespace llmtrain::engine
