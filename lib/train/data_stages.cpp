#include "lib/train/data_stages.hpp"

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/geometry.hpp"

namespace llmtrain::train {

namespace {

/// The sample before which `key`'s part of a run of `steps` steps is over.
std::uint64_t first_sample(const recipe::Key<recipe::Span>& key,
                           const engine::BatchGeometry& geometry, std::int64_t steps) {
  const recipe::Span& start = key();
  const bool in_tokens = start.unit == recipe::Span::Unit::tokens;
  const std::int64_t step_tokens = geometry.seq_len() * geometry.global_batch_size();
  const double unit_tokens = in_tokens ? 1 : static_cast<double>(step_tokens);
  if (static_cast<double>(start.count) * unit_tokens > 0x1p60) {
    throw recipe::RefusedValue(key, "is behind more than 2^60 tokens",
                               "no run comes there; leave the stage out");
  }
  if (in_tokens) {
    const auto length = static_cast<std::uint64_t>(geometry.seq_len());
    return (start.count + length - 1) / length;
  }
  const auto before =
      static_cast<std::int64_t>(start.in_steps(static_cast<std::uint64_t>(steps), 1));
  return geometry.samples_before(before + 1);
}

}  // namespace

std::vector<std::uint64_t> stage_starts(const Recipe& recipe) {
  std::vector<std::uint64_t> starts;
  if (recipe.data.stages.size() == 0) return starts;
  const engine::BatchGeometry geometry(recipe.training);
  const std::int64_t steps = *geometry.total_steps(recipe.training);
  for (std::size_t i = 0; i < recipe.data.stages.size(); ++i) {
    const auto& key = recipe.data.stages[i].start;
    const std::uint64_t start = first_sample(key, geometry, steps);
    if (start <= (starts.empty() ? 0 : starts.back())) {
      throw recipe::RefusedValue(key, "is not behind the start of the stage before it",
                                 "give the stages in their order; the first one begins with the "
                                 "run, with the weights of the sources");
    }
    starts.push_back(start);
  }
  return starts;
}

void warn_of_unreached_stages(const Recipe& recipe) {
  const std::vector<std::uint64_t> starts = stage_starts(recipe);
  if (starts.empty()) return;
  const engine::BatchGeometry geometry(recipe.training);
  const std::int64_t steps = *geometry.total_steps(recipe.training);
  const std::uint64_t samples = geometry.samples_before(steps + 1);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] < samples) continue;
    const auto& key = recipe.data.stages[i].start;
    log::warning(
        "{}: {} is not before the end of the run, which takes {} steps: the stage never begins; "
        "lengthen the run, or leave the stage out",
        key.path(), key.value_text(), steps);
  }
}

}  // namespace llmtrain::train
