#include "lib/train/step_record.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/base/require.hpp"
#include "lib/train/data_metrics.hpp"
#include "lib/train/diagnostics_record.hpp"

namespace llmtrain::train {

namespace {

void set_times(StepRecord& record, const SettledStep& settled) {
  const double tokens_per_second = settled.unrecorded.tokens_per_second();
  const double step_seconds = settled.unrecorded.seconds_per_step();
  const double elapsed = settled.state.elapsed_seconds;
  record.set(metric::kTokensPerSecond, tokens_per_second);
  if (const auto mfu = settled.planned.mfu(tokens_per_second)) record.set(metric::kMfu, *mfu);
  record.set(metric::kStepSeconds, step_seconds);
  record.set(metric::kElapsedSeconds, elapsed);
  double eta = static_cast<double>(settled.total_steps - settled.state.step) * step_seconds;
  if (const auto limit = settled.loop.max_time) {
    eta = std::clamp(limit->seconds - elapsed, 0.0, eta);
  }
  record.set(metric::kEtaSeconds, eta);
}

void set_quantization(StepRecord& record, const engine::QuantizationOutcome& outcome) {
  constexpr std::array<std::string_view, kLinearOperands> kNames = {"input", "weight",
                                                                    "output_grad"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    record.set(fmt::format("fp8/amax/{}", kNames[i]), outcome.amax[i]);
    record.set(fmt::format("fp8/saturated/{}", kNames[i]),
               static_cast<std::int64_t>(outcome.saturated[i]));
  }
}

}  // namespace

StepRecord record_of_step(const SettledStep& settled) {
  const engine::StepOutcome& outcome = settled.outcome;
  const LoopState& state = settled.state;
  StepRecord record{.step = state.step, .fields = {}};
  record.set(metric::kLoss, outcome.loss_sum / static_cast<double>(outcome.trained_tokens));
  if (settled.options.z_loss_coef > 0) {
    record.set("train/z_loss", outcome.z_loss_sum / static_cast<double>(outcome.trained_tokens));
  }
  if (std::isfinite(outcome.loss_sum)) {  // else a norm means nothing
    record.set(metric::kGradNorm, outcome.update.grad_norm);
    record.set(metric::kLearningRate, outcome.update.lr);
  }
  record.set(metric::kTokens, static_cast<std::int64_t>(state.trained_tokens));
  set_shares(record, settled.step.shares);
  record.set("train/samples", static_cast<std::int64_t>(state.next_sample));
  set_sources(record, settled.corpus, state.next_sample);
  set_experts(record, settled.options.model, outcome.routers,
              settled.step.num_samples * settled.options.seq_len);
  record.set("train/skipped_steps", state.skipped_steps);
  if (settled.options.loss_scaling) record.set("train/loss_scale", outcome.update.loss_scale);
  if (outcome.quantization) set_quantization(record, *outcome.quantization);
  if (outcome.diagnostics) {
    set_diagnostics(record, *outcome.diagnostics, outcome.update.loss_scale);
  }
  set_memory(record, settled.peak);
  set_times(record, settled);
  return record;
}

bool evaluation_is_missing(const LoopOptions& options, const LoopState& state, bool finished) {
  const bool due =
      finished || (state.step == 0 ? options.eval_at_start : options.eval_is_due(state.step));
  return due && std::ranges::none_of(state.records, [](const StepRecord& record) {
           return record.find(metric::kEvalLoss) != nullptr;
         });
}

std::string nothing_left(std::int64_t step, std::int64_t total_steps, bool out_of_time,
                         bool out_of_patience) {
  return fmt::format("nothing left to train: step {} is saved, the run has {} steps{}{}", step,
                     total_steps, out_of_time ? ", training.max_time is over" : "",
                     out_of_patience ? ", it ran out of eval.patience" : "");
}

}  // namespace llmtrain::train
