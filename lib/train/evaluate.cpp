#include <algorithm>
#include <cmath>
#include <numbers>

#include "lib/base/require.hpp"
#include "lib/train/batch_source.hpp"
#include "lib/train/signals.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::train {

EvalReport evaluate(engine::Engine& engine, const data::EvalWindows& held_out,
                    std::optional<std::uint64_t> max_samples, engine::StepBatch& batch) {
  const std::uint64_t all = held_out.count();
  const std::uint64_t count = std::min(all, max_samples.value_or(all));
  const auto micro = static_cast<std::uint64_t>(engine.options().micro_batch_size);
  double loss_sum = 0;
  EvalReport report;
  for (std::uint64_t first = 0; first < count; first += micro) {
    fill_eval_batch(held_out, first, static_cast<std::int64_t>(std::min(micro, count - first)),
                    batch);
    const engine::EvalOutcome outcome = engine.evaluate(batch);
    loss_sum += outcome.loss_sum;
    report.tokens += outcome.tokens;
  }
  require<DataError>(report.tokens > 0,
                     "the first {} windows of the held-out text have no trained token, only "
                     "prompts; raise eval.max_samples",
                     count);
  report.loss = loss_sum / static_cast<double>(report.tokens);
  report.whole = count == all;
  if (report.whole) {
    report.bits_per_byte =
        loss_sum / std::numbers::ln2 / static_cast<double>(held_out.samples().source_bytes());
  }
  return report;
}

}  // namespace llmtrain::train
