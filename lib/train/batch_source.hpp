#pragma once
/// Fills the host batch of a step from a stream of samples.

#include <cstdint>
#include <memory>

#include "lib/data/sample_stream.hpp"
#include "lib/engine/batch.hpp"

namespace llmtrain::train {

/// Samples [first_sample, first_sample + count) of the endless training stream. DataError when none
/// of their tokens is trained.
void fill_training_batch(const data::SampleStream& stream, std::uint64_t first_sample,
                         std::int64_t count, engine::StepBatch& batch);

/// Samples [first_sample, first_sample + count) in document order, for evaluation.
void fill_eval_batch(const data::PackedSamples& samples, std::uint64_t first_sample,
                     std::int64_t count, engine::StepBatch& batch);

}  // namespace llmtrain::train
