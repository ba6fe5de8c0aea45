#pragma once
/// What a step's record says about its rows, the sources, the held-out text and memory.

#include <cstdint>
#include <vector>

#include "lib/train/batch_source.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::train {

void set_shares(StepRecord& record, const BatchShares& shares);

/// Of a model with experts, of each of its blocks `experts/load/<block>`, the share of the step's
/// choices that each expert got, times the number of experts, and of all blocks
/// `experts/max_load`, the largest of these, `experts/balance_loss` and `experts/z_loss`, means
/// over the step's `rows` and the blocks, without their factors. Where experts have limited room,
/// `experts/dropped/<block>` and, of all blocks, `experts/dropped_share`: the share of the choices
/// that found none.
void set_experts(StepRecord& record, const models::DecoderSpec& model,
                 const engine::RouterOutcome& routers, std::int64_t rows);

/// The largest number of bytes that were held, and of each category that held any.
void set_memory(StepRecord& record, const Peak& peak);

/// For each source of a mixture `data/<name>/samples`, those among the first `samples` of the run,
/// and `data/<name>/epochs`, as passes through the source; nothing without a mixture.
void set_sources(StepRecord& record, const Corpus& corpus, std::uint64_t samples);

/// Loss, perplexity and, of whole evaluations, bits per byte: of all held-out text and, as
/// `eval/<name>/...`, of each source of a mixture. Returns the loss over all.
double set_evaluation(StepRecord& record, const Corpus& corpus,
                      const std::vector<EvalReport>& reports);

}  // namespace llmtrain::train
