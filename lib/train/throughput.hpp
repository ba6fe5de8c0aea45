#pragma once
/// Speed of the steps since the last record, so that a record speaks for all of them.

#include <cstdint>

namespace llmtrain::train {

/// Steps with their input, without evaluation and saving.
struct Throughput {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds = 0;

  void add(std::int64_t step_tokens, double step_seconds) {
    ++steps;
    tokens += step_tokens;
    seconds += step_seconds;
  }
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double seconds_per_step() const { return seconds / static_cast<double>(steps); }
};

}  // namespace llmtrain::train
