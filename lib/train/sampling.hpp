#pragma once
/// What the model makes of eval.sample_prompts, at every evaluation.

#include <cstdint>
#include <functional>

#include "lib/data/tokenizer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/run_output.hpp"

namespace llmtrain::train {

/// `output` is null on ranks that write nothing. Collective: others wait for the first as long as
/// it takes. False, and nothing is written, when `stop`, which is collective too, or a signal to a
/// rank that decodes alone asks to stop.
bool write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output, const std::function<bool()>& stop);

}  // namespace llmtrain::train
