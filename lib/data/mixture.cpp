#include "lib/data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::data {

namespace {

constexpr double kWeightUnits = 0x1p40;

}  // namespace

Proportions::Proportions(std::span<const double> weights) : sums_{0} {
  double largest = 0;
  for (const double weight : weights) {
    require<RecipeError>(weight >= 0 && std::isfinite(weight), "a weight of {}", weight);
    largest = std::max(largest, weight);
  }
  require<RecipeError>(largest > 0, "no weight above 0");
  for (const double weight : weights) {
    const auto units = static_cast<std::uint64_t>(std::llround(weight / largest * kWeightUnits));
    // However light, a source with a weight has its turn.
    sums_.push_back(sums_.back() + (weight > 0 ? std::max<std::uint64_t>(units, 1) : 0));
  }
}

std::uint64_t Proportions::left_count(std::size_t low, std::size_t middle, std::size_t high,
                                      std::uint64_t n) const {
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t all = sums_[high] - sums_[low];
  if (all == 0) return 0;
  const std::uint64_t left = sums_[middle] - sums_[low];
  return static_cast<std::uint64_t>((Wide{2} * n * left + all) / (Wide{2} * all));
}

std::uint64_t Proportions::count(std::size_t part, std::uint64_t n) const {
  std::size_t low = 0, high = sums_.size() - 1;
  require(part < high, "part {} of {}", part, high);
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    const std::uint64_t left = left_count(low, middle, high, n);
    if (part < middle) {
      high = middle;
      n = left;
    } else {
      low = middle;
      n -= left;
    }
  }
  return n;
}

std::size_t Proportions::part_at(std::uint64_t index) const {
  std::size_t low = 0, high = sums_.size() - 1;
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    const std::uint64_t left = left_count(low, middle, high, index);
    if (left_count(low, middle, high, index + 1) > left) {
      high = middle;
      index = left;
    } else {
      low = middle;
      index -= left;
    }
  }
  return low;
}

Mixture::Mixture(std::vector<MixtureSource> sources, const std::vector<MixtureStage>& stages)
    : sources_(std::move(sources)), given_(sources_.size(), 0) {
  require<RecipeError>(!stages.empty() && stages.front().first_sample == 0,
                       "the first stage of a mixture begins with the run");
  for (const MixtureSource& source : sources_) {
    require(source.samples > 0, "a source without samples");
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool last = i + 1 == stages.size();
    const std::uint64_t end = last ? kEndless : stages[i + 1].first_sample;
    require<RecipeError>(stages[i].weights.size() == sources_.size(),
                         "stage {} has {} weights for {} sources", i, stages[i].weights.size(),
                         sources_.size());
    require<RecipeError>(end > stages[i].first_sample,
                         "stage {} begins at sample {}, the one before it at {}", i + 1, end,
                         stages[i].first_sample);
    if (!add_stage(stages[i], end)) return;
  }
}

std::uint64_t Mixture::limit(std::size_t source) const {
  const MixtureSource& s = sources_[source];
  if (!s.max_epochs) return kEndless;
  const double samples = std::floor(*s.max_epochs * static_cast<double>(s.samples));
  return samples >= static_cast<double>(kEndless) ? kEndless : static_cast<std::uint64_t>(samples);
}

bool Mixture::add_stage(const MixtureStage& stage, std::uint64_t end) {
  std::uint64_t begin = stage.first_sample;
  while (begin < end) {
    std::vector<double> weights = stage.weights;
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (given_[s] >= limit(s)) weights[s] = 0;
    }
    length_ = begin;
    if (*std::max_element(weights.begin(), weights.end()) <= 0) return false;
    Segment segment{begin, Proportions(weights), given_};
    // The first position at which some source has given all.
    std::uint64_t stop = end - begin;
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (weights[s] <= 0 || limit(s) == kEndless) continue;
      const std::uint64_t left = limit(s) - given_[s];
      std::uint64_t low = 0, high = stop;  // the first n with count(n) >= left lies in (low, high]
      while (high - low > 1) {
        const std::uint64_t middle = low + (high - low) / 2;
        (segment.proportions.count(s, middle) >= left ? high : low) = middle;
      }
      if (segment.proportions.count(s, high) >= left) stop = high;
    }
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      const bool had_samples = given_[s] < limit(s);
      given_[s] += segment.proportions.count(s, stop);
      if (had_samples && given_[s] >= limit(s)) ends_.push_back({s, begin + stop});
    }
    segments_.push_back(std::move(segment));
    begin += stop;
    length_ = begin;
  }
  return true;
}

const Mixture::Segment& Mixture::segment_of(std::uint64_t index) const {
  const auto next =
      std::upper_bound(segments_.begin(), segments_.end(), index,
                       [](std::uint64_t i, const Segment& segment) { return i < segment.begin; });
  return *std::prev(next);
}

Mixture::Place Mixture::place(std::uint64_t index) const {
  require(index < length_, "sample {} of a stream of {}", index, length_);
  const Segment& segment = segment_of(index);
  const std::uint64_t local = index - segment.begin;
  const std::size_t source = segment.proportions.part_at(local);
  return {source, segment.before[source] + segment.proportions.count(source, local)};
}

std::uint64_t Mixture::count(std::size_t source, std::uint64_t n) const {
  require(n <= length_, "the first {} samples of a stream of {}", n, length_);
  if (n == 0) return 0;
  const Segment& segment = segment_of(n - 1);
  return segment.before[source] + segment.proportions.count(source, n - segment.begin);
}

}  // namespace llmtrain::data
