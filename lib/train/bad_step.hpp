#pragma once
/// Steps whose loss or gradients say that something is wrong, and what the recipe does then
/// (resilience.on_non_finite, on_loss_spike). None of them has changed a parameter: the device
/// decides that by itself (kernels::DecideUpdate).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engine/engine.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/launched_step.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// A step that was not applied, other than for the scale of FP16.
struct BadStep {
  std::int64_t number = 0;
  std::uint64_t first_sample = 0, end_sample = 0;
  std::string what;    // "the loss is not finite"
  bool spike = false;  // it is finite
  OnBadStep policy = OnBadStep::stop;
  double loss = 0;  // nats per trained token
  double grad_norm = 0;
  double loss_limit = 0;  // as loss; infinite without one
  std::string where =
      {};  // "the loss (rank 1), the gradient of a and 7 more (all ranks)", if known

  /// Of a way back: the first sample that it leaves out; end_sample is behind the last one.
  std::optional<std::uint64_t> left_out_from = {};

  /// "step 7: the loss is not finite (samples 12 to 13)"
  std::string text() const;
};

/// Largest loss, in nats per token, that step `number` may have; infinite where the recipe knows no
/// spikes or too few steps were made. It goes by steps up to number - 2 alone, because devices that
/// run behind have not told the last one when the next is launched.
double loss_limit_of(const LoopOptions& options, const LoopState& state, std::int64_t number);

/// Counts a settled step in `state`, in which a step that applied leaves its loss. What was wrong
/// with it, if something was; an overflow of FP16's scale, which can shrink, is skipped whatever
/// the recipe says, and is nothing of the kind.
std::optional<BadStep> judge_step(const LoopOptions& options, const LaunchedStep& step,
                                  const engine::StepOutcome& outcome, LoopState& state);

/// What is not finite, of a bad step that has left the ranks' memory as it was. Collective.
std::string where_not_finite(engine::Engine& engine, const Peers& peers);

/// NumericError, naming the step and its samples, where the recipe stops at once, or has skipped or
/// gone back as often as it allows. No checkpoint holds a later step: saving settles all steps
/// first.
void stop_or_go_on(const LoopOptions& options, const BadStep& bad, const LoopState& state);

/// For incidents.jsonl: numbers, what was done, and of its samples, up to 256, which documents are
/// in them and how their text begins.
StepRecord incident_of(const BadStep& bad, std::string_view done, const data::MixedStream& stream,
                       const Corpus& corpus);

}  // namespace llmtrain::train
