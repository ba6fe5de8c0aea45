#include "lib/train/bad_step.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include <fmt/ranges.h>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/data/inspect.hpp"
#include "lib/engine/not_finite.hpp"

namespace llmtrain::train {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string what_is_wrong(const engine::StepOutcome& outcome, double loss, double limit) {
  if (!std::isfinite(outcome.loss_sum + outcome.z_loss_sum)) return "the loss is not finite";
  if (!outcome.update.finite) return "the gradient norm is not finite";
  return fmt::format("the loss is {:.4f}, above {:.4f}", loss, limit);
}

}  // namespace

std::string BadStep::text() const {
  return fmt::format("step {}: {} (samples {} to {})", number, what, first_sample, end_sample - 1);
}

double loss_limit_of(const LoopOptions& options, const LoopState& state, std::int64_t number) {
  if (options.on_loss_spike == OnBadStep::ignore) return kNoLimit;
  const auto usual =
      state.recent_losses.median(number - 2, static_cast<std::size_t>(options.loss_spike_window));
  return usual ? options.loss_spike_factor * *usual : kNoLimit;
}

std::optional<BadStep> judge_step(const LoopOptions& options, const LaunchedStep& step,
                                  const engine::StepOutcome& outcome, LoopState& state) {
  const double loss = outcome.loss_sum / static_cast<double>(outcome.trained_tokens);
  if (outcome.update.applied) {
    state.skipped_in_a_row = 0;
    if (options.on_loss_spike != OnBadStep::ignore) {
      // One more than the window: the last one is too new for the next step.
      const auto kept = static_cast<std::size_t>(options.loss_spike_window + 1);
      state.recent_losses.add({step.number, loss}, kept);
    }
    return std::nullopt;
  }
  ++state.skipped_steps;
  if (outcome.update.overflowed) {
    log::info("step {}: the gradients overflow at a loss scale of {}: update skipped, {} so far",
              step.number, outcome.update.loss_scale, state.skipped_steps);
    return std::nullopt;
  }
  ++state.skipped_in_a_row;
  return BadStep{.number = step.number,
                 .first_sample = step.first_sample,
                 .end_sample = step.end_sample(),
                 .what = what_is_wrong(outcome, loss, step.loss_limit),
                 .spike = outcome.update.finite,
                 .policy = outcome.update.finite ? options.on_loss_spike : options.on_non_finite,
                 .loss = loss,
                 .grad_norm = outcome.update.grad_norm,
                 .loss_limit = step.loss_limit};
}

std::string where_not_finite(engine::Engine& engine, const Peers& peers) {
  const std::string mine = fmt::format("{}", fmt::join(engine::what_is_not_finite(engine), "\n"));
  const std::vector<std::string> all = peers.texts_of_all(mine, "what is not finite");
  std::vector<std::pair<std::string, std::vector<std::size_t>>> found;  // what, on which ranks
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    for (std::string what; std::getline(lines, what);) {
      auto at = std::ranges::find(found, what, [](const auto& entry) { return entry.first; });
      if (at == found.end()) at = found.insert(found.end(), {what, {}});
      at->second.push_back(rank);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [what, ranks] : found) {
    const std::string where =
        ranks.size() == all.size()
            ? "all ranks"
            : fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
    texts.push_back(all.size() == 1 ? what : fmt::format("{} ({})", what, where));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void stop_or_go_on(const LoopOptions& options, const BadStep& bad, const LoopState& state) {
  require<NumericError>(bad.policy != OnBadStep::stop, "{}; resilience.{} is stop", bad.text(),
                        bad.spike ? "on_loss_spike" : "on_non_finite");
  if (bad.policy == OnBadStep::rollback) {
    require<NumericError>(state.rollbacks < options.max_rollbacks,
                          "{}; the run went back {} times since its last save, and "
                          "resilience.max_rollbacks is {}",
                          bad.text(), state.rollbacks, options.max_rollbacks);
    return;
  }
  log::warning("{}: update skipped, {} so far", bad.text(), state.skipped_steps);
  require<NumericError>(state.skipped_in_a_row <= options.max_skipped_steps,
                        "step {}: {} steps in a row were {}; resilience.max_skipped_steps is {}",
                        bad.number, state.skipped_in_a_row, bad.spike ? "no good" : "not finite",
                        options.max_skipped_steps);
}

namespace {

// "text.txt:18: how it begins", of each document in a sample.
std::string documents_of(std::uint64_t index, const data::MixedStream& stream,
                         const data::Tokenizer& tokenizer) {
  constexpr std::size_t kShownDocuments = 8, kShownTokens = 24;
  const data::Mixture::Place place = stream.mixture().place(index);
  const data::SampleStream& source = stream.sources()[place.source];
  const data::Sample sample = source.sample_at(place.index);
  const std::vector<data::SamplePiece> pieces = source.samples().pieces(sample.index);
  std::vector<std::string> documents;
  std::size_t row = 0;
  for (const data::SamplePiece& piece :
       std::span(pieces).first(std::min(kShownDocuments, pieces.size()))) {
    const auto rows = static_cast<std::size_t>(piece.rows);
    const auto begin = std::span(sample.tokens).subspan(row, std::min(kShownTokens, rows));
    documents.push_back(fmt::format("{}: {}", source.samples().set().document_name(piece.document),
                                    data::visible_text(tokenizer.decode(begin))));
    row += rows;
  }
  if (pieces.size() > kShownDocuments) {
    documents.push_back(fmt::format("{} more documents", pieces.size() - kShownDocuments));
  }
  return fmt::format("{}", fmt::join(documents, " | "));
}

}  // namespace

StepRecord incident_of(const BadStep& bad, std::string_view done, const data::MixedStream& stream,
                       const Corpus& corpus) {
  constexpr std::uint64_t kShownSamples = 256;
  StepRecord record{.step = bad.number, .fields = {}};
  record.set("incident/what", bad.what);
  if (!bad.where.empty()) record.set("incident/where", bad.where);
  record.set("incident/done", std::string(done));
  record.set("incident/loss", bad.loss);
  record.set("incident/grad_norm", bad.grad_norm);
  record.set("incident/loss_limit", bad.loss_limit);
  record.set("incident/first_sample", static_cast<std::int64_t>(bad.first_sample));
  record.set("incident/last_sample", static_cast<std::int64_t>(bad.end_sample) - 1);
  if (bad.left_out_from) {
    record.set("incident/left_out_from", static_cast<std::int64_t>(*bad.left_out_from));
  }
  const std::uint64_t shown = std::min(bad.end_sample, bad.first_sample + kShownSamples);
  for (std::uint64_t index = bad.first_sample; index < shown; ++index) {
    record.set(fmt::format("incident/sample/{}", index),
               documents_of(index, stream, *corpus.tokenizer));
  }
  return record;
}

}  // namespace llmtrain::train
