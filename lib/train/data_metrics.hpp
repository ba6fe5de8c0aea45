#pragma once
/// What a step's record says about the sources and the held-out text.

#include <cstdint>
#include <vector>

#include "lib/train/corpus.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::train {

/// Of the step's rows those that are trained, and of these the ends of documents.
void set_shares(StepRecord& record, const engine::StepBatch& batch);

/// For each source of a mixture `data/<name>/samples`, those among the first `samples` of the run,
/// and `data/<name>/epochs`, as passes through the source; nothing without a mixture.
void set_sources(StepRecord& record, const Corpus& corpus, std::uint64_t samples);

/// Loss, perplexity and, of whole evaluations, bits per byte: of all held-out text and, as
/// `eval/<name>/...`, of each source of a mixture. Returns the loss over all.
double set_evaluation(StepRecord& record, const Corpus& corpus,
                      const std::vector<EvalReport>& reports);

}  // namespace llmtrain::train
