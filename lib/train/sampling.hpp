#pragma once
/// What the model makes of eval.sample_prompts, at every evaluation.

#include <cstdint>

#include "lib/data/tokenizer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/run_output.hpp"

namespace llmtrain::train {

/// `output` is null on ranks that write nothing. Collective: others wait for the first as long as
/// it takes.
void write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output);

}  // namespace llmtrain::train
