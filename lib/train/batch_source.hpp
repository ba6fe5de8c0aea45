#pragma once
/// Fills the host batch of a step from a stream of samples.

#include <cstdint>
#include <memory>

#include "lib/comm/communicator.hpp"
#include "lib/data/eval_windows.hpp"
#include "lib/data/mixed_stream.hpp"
#include "lib/engine/batch.hpp"

namespace llmtrain::train {

/// Of a step's rows those that are trained, and of these the ends of documents.
struct BatchShares {
  double trained = 0, trained_ends = 0;
};

/// This rank's share of the step that takes samples [first_sample, first_sample + count) of the
/// endless training stream: ranks of `data` take parts of one size in their order. Collective.
/// Returns what is trained of the whole step. DataError when none of its tokens is.
BatchShares fill_share_of_batch(const data::MixedStream& stream, std::uint64_t first_sample,
                                std::int64_t count, Communicator& data, engine::StepBatch& batch);

/// Windows [first_window, first_window + count), for evaluation.
void fill_eval_batch(const data::EvalWindows& windows, std::uint64_t first_window,
                     std::int64_t count, engine::StepBatch& batch);

}  // namespace llmtrain::train
