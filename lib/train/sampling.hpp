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

/// Whether a run is asked to stop.
struct StopRequests {
  /// Collective: by whatever any rank has heard.
  std::function<bool()> of_all;
  /// By what this rank hears, of which of_all() tells the others then.
  std::function<bool()> here;
};

/// `output` is null on ranks that write nothing. Collective: others wait for the first as long as
/// it takes. False, and nothing is written, when asked to stop: what the first rank hears counts at
/// every token, what others hear at every prompt, or token where all decode.
bool write_samples(engine::Engine& engine, const Peers& peers, const data::Tokenizer& tokenizer,
                   const LoopOptions& options, std::uint64_t seed, std::int64_t step,
                   RunOutput* output, const StopRequests& stop);

}  // namespace llmtrain::train
