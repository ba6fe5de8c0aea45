#include "lib/train/recent_losses.hpp"

#include <algorithm>
#include <charconv>

#include "lib/base/require.hpp"

namespace llmtrain::train {

void RecentLosses::add(StepLoss of, std::size_t kept) {
  losses_.push_back(of);
  if (losses_.size() > kept) losses_.erase(losses_.begin());
}

std::optional<double> RecentLosses::median(std::int64_t last, std::size_t window) const {
  std::vector<double> values;
  for (auto of = losses_.rbegin(); of != losses_.rend() && values.size() < window; ++of) {
    if (of->step <= last) values.push_back(of->loss);
  }
  if (window == 0 || values.size() < window) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string RecentLosses::text() const {
  std::string text;
  for (const StepLoss& of : losses_) text += fmt::format("{} {}\n", of.step, of.loss);
  return text;
}

RecentLosses RecentLosses::parse(std::string_view text, std::string_view name) {
  RecentLosses losses;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    StepLoss of;
    const auto step = std::from_chars(at, end, of.step);
    const bool separated = step.ec == std::errc{} && step.ptr != end && *step.ptr == ' ';
    require<CheckpointError>(separated, "{} is no list of steps and losses", name);
    const auto loss = std::from_chars(step.ptr + 1, end, of.loss);
    const bool ended = loss.ec == std::errc{} && loss.ptr != end && *loss.ptr == '\n';
    require<CheckpointError>(ended, "{} is no list of steps and losses", name);
    losses.losses_.push_back(of);
    at = loss.ptr + 1;
  }
  return losses;
}

}  // namespace llmtrain::train
