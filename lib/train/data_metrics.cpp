#include "lib/train/data_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

namespace llmtrain::train {

void set_shares(StepRecord& record, const BatchShares& shares) {
  record.set(metric::kTrainedShare, shares.trained);
  record.set(metric::kTrainedEndShare, shares.trained_ends);
}

void set_experts(StepRecord& record, const models::DecoderSpec& model,
                 const engine::RouterOutcome& routers, std::int64_t rows) {
  const std::size_t blocks = routers.choices.size();
  if (blocks == 0) return;
  double max_load = 0, kept = 0;
  std::size_t block = 0;
  for (std::int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (!model.has_experts(layer)) continue;
    const std::vector<double>& choices = routers.choices[block];
    const auto all = static_cast<double>(rows * model.experts.rule.top_k);
    const double mean = all / static_cast<double>(choices.size());
    if (!routers.kept.empty()) {
      record.set(fmt::format("experts/dropped/{}", layer), 1 - routers.kept[block] / all);
      kept += routers.kept[block] / (all * static_cast<double>(blocks));
    }
    ++block;
    std::vector<std::string> loads;
    for (const double count : choices) {
      max_load = std::max(max_load, count / mean);
      loads.push_back(fmt::format("{:.4g}", count / mean));
    }
    record.set(fmt::format("experts/load/{}", layer), fmt::format("{}", fmt::join(loads, " ")));
  }
  const double tokens = static_cast<double>(rows) * static_cast<double>(blocks);
  const auto mean = [&](const std::vector<double>& sums) {
    return std::accumulate(sums.begin(), sums.end(), 0.0) / tokens;
  };
  record.set("experts/max_load", max_load);
  record.set("experts/balance_loss", mean(routers.balance));
  record.set("experts/z_loss", mean(routers.z));
  if (!routers.kept.empty()) record.set("experts/dropped_share", 1 - kept);
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
