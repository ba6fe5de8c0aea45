#pragma once
/// How fast the processor was while some work ran.

#include <chrono>
#include <functional>
#include <utility>

#include "lib/plan/fma_peak.hpp"

namespace llmtrain::plan {

/// Interrupts work for moments in which it measures the multiply-add rate, and takes them off the
/// work's time. A machine that others use too can change within seconds, so that rates before and
/// after a step of seconds do not tell what the step had. One thread calls.
class FmaSampler {
 public:
  static constexpr double kWorkSeconds = 0.05;    ///< between two samples, at least
  static constexpr double kSampleSeconds = 0.01;  ///< a good length of a sample

  /// `measure` takes one sample; without it there are none, and rates are 0.
  explicit FmaSampler(std::function<FmaRate()> measure) : measure_(std::move(measure)) {}

  struct Stretch {
    double seconds = 0;  ///< of work
    FmaRate rate;        ///< mean of the samples
  };

  /// Takes a sample and starts a stretch.
  void begin();
  /// Between two pieces of work: takes a sample if one is due. Nothing outside a stretch.
  void pause();
  /// Takes a sample and ends the stretch.
  Stretch end();

 private:
  using Clock = std::chrono::steady_clock;
  void stop_work();
  void sample();

  std::function<FmaRate()> measure_;
  bool inside_ = false;
  Clock::time_point work_begin_;  // since the last sample
  double work_seconds_ = 0;       // up to the last sample
  FmaRate sum_;
  int samples_ = 0;
};

}  // namespace llmtrain::plan
