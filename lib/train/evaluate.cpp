#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/base/tree_sum.hpp"
#include "lib/train/batch_source.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::train {

std::optional<double> EvalReport::bits_per_byte() const {
  if (!whole || !source_bytes) return std::nullopt;
  return loss_sum / std::numbers::ln2 / static_cast<double>(*source_bytes);
}

EvalReport& EvalReport::operator+=(const EvalReport& other) {
  loss_sum += other.loss_sum;
  tokens += other.tokens;
  source_bytes = source_bytes && other.source_bytes
                     ? std::optional(*source_bytes + *other.source_bytes)
                     : std::nullopt;
  whole = whole && other.whole;
  return *this;
}

namespace {

/// The sum over all ranks' rounds, in the order of their samples: the same however many ranks there
/// are.
double sum_by_samples(std::span<const double> rounds, Communicator& data) {
  std::vector<std::int64_t> bits;
  for (const double loss : rounds) bits.push_back(std::bit_cast<std::int64_t>(loss));
  const std::vector<std::int64_t> all = data.gather_numbers(bits, "evaluation");
  std::vector<double> losses;
  for (std::size_t round = 0; round < bits.size(); ++round) {
    for (std::size_t of_rank = round; of_rank < all.size(); of_rank += bits.size()) {
      losses.push_back(std::bit_cast<double>(all[of_rank]));
    }
  }
  return tree_sum(losses);
}

std::optional<EvalReport> evaluate_part(engine::Engine& engine, const data::EvalWindows& held_out,
                                        std::optional<std::uint64_t> max_samples,
                                        engine::StepBatch& batch,
                                        const std::function<bool()>& stop) {
  const std::uint64_t all = held_out.count();
  const std::uint64_t count = std::min(all, max_samples.value_or(all));
  const auto samples = static_cast<std::uint64_t>(engine.evaluation_samples());
  Communicator& data = engine.mesh().axis(Axis::dp);
  const auto ranks = static_cast<std::uint64_t>(data.size());
  EvalReport report{.source_bytes = held_out.samples().source_bytes(), .whole = count == all};
  std::vector<double> losses;  // of the rounds
  for (std::uint64_t round = 0; round < count; round += samples * ranks) {
    const std::uint64_t mine = round + samples * static_cast<std::uint64_t>(data.rank());
    const bool idle = mine >= count;
    if (stop && stop()) return std::nullopt;
    if (idle && !engine.passes_together()) break;
    const std::uint64_t first = idle ? 0 : mine;  // the others need this rank's parameters
    fill_eval_batch(held_out, first, static_cast<std::int64_t>(std::min(samples, count - first)),
                    batch);
    const engine::EvalOutcome outcome = engine.evaluate(batch);
    if (idle) break;
    losses.push_back(outcome.loss_sum);
    report.tokens += outcome.tokens;
  }
  losses.resize((count + samples * ranks - 1) / (samples * ranks));  // idle: 0
  report.loss_sum = sum_by_samples(losses, data);
  const auto tokens = data.gather_values(report.tokens, "tokens of an evaluation");
  report.tokens = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  require<DataError>(report.tokens > 0,
                     "the first {} windows of the held-out text have no trained token, only "
                     "prompts; raise eval.max_samples",
                     count);
  return report;
}

}  // namespace

std::optional<std::vector<EvalReport>> evaluate(engine::Engine& engine,
                                                const std::vector<CorpusPart>& parts,
                                                std::optional<std::uint64_t> max_samples,
                                                engine::StepBatch& batch,
                                                const std::function<bool()>& stop) {
  std::vector<EvalReport> reports;
  for (const CorpusPart& part : parts) {
    auto report = evaluate_part(engine, *part.held_out, max_samples, batch, stop);
    if (!report) return std::nullopt;
    reports.push_back(*report);
  }
  return reports;
}

EvalReport total(const std::vector<EvalReport>& reports) {
  return std::accumulate(reports.begin(), reports.end(), EvalReport{},
                         [](EvalReport sum, const EvalReport& one) { return sum += one; });
}

}  // namespace llmtrain::train
