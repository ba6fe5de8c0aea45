#include "lib/engine/geometry.hpp"

#include <algorithm>
#include <numeric>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

void check_share(const recipe::Key<recipe::Count>& key, std::int64_t micro_batch_size,
                 int data_ranks) {
  const auto samples = static_cast<std::int64_t>(key().value);
  const std::int64_t unit = micro_batch_size * data_ranks;
  if (samples % unit == 0) return;
  const std::int64_t below = samples / unit * unit;
  std::string remedy =
      fmt::format("{}{} divide", below == 0 ? "" : fmt::format("{} and ", below), below + unit);
  if (samples % micro_batch_size == 0) {
    const std::int64_t micro_batches = samples / micro_batch_size;
    std::int64_t fewer = std::min<std::int64_t>(data_ranks, micro_batches), more = data_ranks;
    while (micro_batches % fewer != 0) --fewer;
    while (more < micro_batches && micro_batches % more != 0) ++more;
    remedy +=
        fmt::format(", or take {}{} ranks", fewer,
                    more > micro_batches || more == data_ranks ? "" : fmt::format(" or {}", more));
  }
  throw recipe::RefusedValue(key,
                             fmt::format("{} samples, which {} ranks cannot share in micro-batches "
                                         "of {}",
                                         samples, data_ranks, micro_batch_size),
                             remedy);
}

}  // namespace

BatchGeometry::BatchGeometry(const TrainingSection& training, int data_ranks)
    : seq_len_(static_cast<std::int64_t>(training.seq_len().value)),
      micro_batch_size_(static_cast<std::int64_t>(training.micro_batch_size().value)),
      data_ranks_(data_ranks) {
  const auto full = static_cast<std::int64_t>(training.global_batch_size().value);
  if (data_ranks > 1) {  // of one rank the section speaks itself
    check_share(training.global_batch_size, micro_batch_size_, data_ranks);
  }
  std::int64_t step = 1;
  std::uint64_t samples = 0;
  if (training.rampup_batch_size) {
    const RampupSection& ramp = training.rampup_batch_size;
    const auto start = static_cast<std::int64_t>(ramp.start().value);
    const auto increment = static_cast<std::int64_t>(ramp.increment().value);
    const std::int64_t levels = (full - start) / increment;
    if (data_ranks > 1) {
      check_share(ramp.start, micro_batch_size_, data_ranks);
      check_share(ramp.increment, micro_batch_size_, data_ranks);
    }
    // Every level lasts until its share of the ramp's samples is taken.
    for (std::int64_t i = 0; i < levels; ++i) {
      const std::int64_t size = start + i * increment;
      const std::uint64_t until =
          ramp.samples() * static_cast<std::uint64_t>(i + 1) / static_cast<std::uint64_t>(levels);
      if (samples >= until) continue;
      ramp_.push_back({step, size, samples});
      const auto steps =
          static_cast<std::int64_t>((until - samples + static_cast<std::uint64_t>(size) - 1) /
                                    static_cast<std::uint64_t>(size));
      step += steps;
      samples += static_cast<std::uint64_t>(steps * size);
    }
  }
  ramp_.push_back({step, full, samples});
}

const BatchGeometry::Level& BatchGeometry::level_of(std::int64_t step) const {
  const auto next =
      std::upper_bound(ramp_.begin(), ramp_.end(), step,
                       [](std::int64_t s, const Level& level) { return s < level.first_step; });
  return *std::prev(next);
}

std::vector<std::int64_t> BatchGeometry::batch_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const Level& level : ramp_) sizes.push_back(level.batch_size);
  return sizes;
}

std::int64_t BatchGeometry::common_micro_batches() const {
  std::int64_t common = 0;
  for (const Level& level : ramp_) {
    common = std::gcd(common, level.batch_size / micro_batch_size_);
  }
  return common;
}

std::int64_t BatchGeometry::samples_in_step(std::int64_t step) const {
  return level_of(step).batch_size;
}

std::uint64_t BatchGeometry::samples_before(std::int64_t step) const {
  const Level& level = level_of(step);
  return level.samples_before +
         static_cast<std::uint64_t>((step - level.first_step) * level.batch_size);
}

std::optional<std::int64_t> BatchGeometry::total_steps(const TrainingSection& training) const {
  const auto steps = training.max_steps();
  const auto tokens = training.max_tokens();
  if (steps) return static_cast<std::int64_t>(steps->value);
  if (!tokens) return std::nullopt;
  const auto length = static_cast<std::uint64_t>(seq_len_);
  return steps_for_samples((tokens->value + length - 1) / length);
}

std::int64_t BatchGeometry::steps_for_samples(std::uint64_t samples) const {
  const auto next = std::find_if(ramp_.begin() + 1, ramp_.end(), [&](const Level& level) {
    return level.samples_before >= samples;
  });
  const Level& level = *std::prev(next);
  const std::uint64_t missing = samples - std::min(samples, level.samples_before);
  const auto size = static_cast<std::uint64_t>(level.batch_size);
  return level.first_step - 1 + static_cast<std::int64_t>((missing + size - 1) / size);
}

}  // namespace llmtrain::engine
