#include "lib/train/data_metrics.hpp"

#include <cmath>

namespace llmtrain::train {

void set_shares(StepRecord& record, const BatchShares& shares) {
  record.set(metric::kTrainedShare, shares.trained);
  record.set(metric::kTrainedEndShare, shares.trained_ends);
}

void set_memory(StepRecord& record, const Peak& peak) {
  record.set(metric::kPeakBytes, static_cast<std::int64_t>(peak.total_bytes));
  for (int c = 0; c < kNumCategories; ++c) {
    const std::uint64_t bytes = peak.per_category[static_cast<std::size_t>(c)];
    if (bytes == 0) continue;
    record.set(
        fmt::format("{}{}{}", metric::kMemoryPrefix, to_string(Category(c)), metric::kBytesSuffix),
        static_cast<std::int64_t>(bytes));
  }
}

void set_sources(StepRecord& record, const Corpus& corpus, std::uint64_t samples) {
  if (!corpus.is_mixture()) return;
  for (std::size_t i = 0; i < corpus.parts.size(); ++i) {
    const CorpusPart& part = corpus.parts[i];
    const std::uint64_t count = corpus.mixture.count(i, samples);
    record.set(fmt::format("data/{}/samples", part.name), static_cast<std::int64_t>(count));
    record.set(fmt::format("data/{}/epochs", part.name),
               static_cast<double>(count) / static_cast<double>(part.training->sample_count()));
  }
}

double set_evaluation(StepRecord& record, const Corpus& corpus,
                      const std::vector<EvalReport>& reports) {
  const EvalReport all = total(reports);
  record.set(metric::kEvalLoss, all.loss());
  record.set(metric::kEvalPerplexity, std::exp(all.loss()));
  if (const auto bits = all.bits_per_byte()) record.set(metric::kEvalBitsPerByte, *bits);
  if (!corpus.is_mixture()) return all.loss();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const std::string prefix = fmt::format("eval/{}/", corpus.parts[i].name);
    record.set(prefix + "loss", reports[i].loss());
    if (const auto bits = reports[i].bits_per_byte()) record.set(prefix + "bits_per_byte", *bits);
  }
  return all.loss();
}

}  // namespace llmtrain::train
