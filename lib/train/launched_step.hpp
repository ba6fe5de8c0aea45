#pragma once
/// A step under way: what the loop knows when it launches it and tells when it settles it.

#include <chrono>
#include <cstdint>

#include "lib/train/batch_source.hpp"

namespace llmtrain::train {

struct LaunchedStep {
  std::int64_t number = 0;
  std::uint64_t first_sample = 0;
  std::int64_t num_samples = 0;
  BatchShares shares;
  double loss_limit = 0;  // nats per trained token
  std::chrono::steady_clock::time_point begin;

  std::uint64_t end_sample() const {
    return first_sample + static_cast<std::uint64_t>(num_samples);
  }
};

}  // namespace llmtrain::train
