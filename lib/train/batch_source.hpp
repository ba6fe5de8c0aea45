#pragma once
/// Fills the host batch of a step from a stream of samples.

#include <cstdint>
#include <memory>

#include "lib/data/eval_windows.hpp"
#include "lib/data/mixed_stream.hpp"
#include "lib/engine/batch.hpp"

namespace llmtrain::train {

/// Samples [first_sample, first_sample + count) of the endless training stream. DataError when none
/// of their tokens is trained.
void fill_training_batch(const data::MixedStream& stream, std::uint64_t first_sample,
                         std::int64_t count, engine::StepBatch& batch);

/// Windows [first_window, first_window + count), for evaluation.
void fill_eval_batch(const data::EvalWindows& windows, std::uint64_t first_window,
                     std::int64_t count, engine::StepBatch& batch);

}  // namespace llmtrain::train
