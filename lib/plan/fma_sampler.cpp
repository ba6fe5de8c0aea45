#include "lib/plan/fma_sampler.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::plan {

void FmaSampler::sample() {
  if (measure_) {
    const FmaRate rate = measure_();
    sum_.peak += rate.peak;
    sum_.mean += rate.mean;
    ++samples_;
  }
  work_begin_ = Clock::now();
}

void FmaSampler::stop_work() {
  work_seconds_ += std::chrono::duration<double>(Clock::now() - work_begin_).count();
}

void FmaSampler::begin() {
  require(!inside_, "a stretch of work has begun already");
  inside_ = true;
  work_seconds_ = 0;
  sum_ = {};
  samples_ = 0;
  sample();
}

void FmaSampler::pause() {
  if (!inside_) return;
  if (std::chrono::duration<double>(Clock::now() - work_begin_).count() < kWorkSeconds) return;
  stop_work();
  sample();
}

FmaSampler::Stretch FmaSampler::end() {
  require(inside_, "no stretch of work has begun");
  stop_work();
  sample();
  inside_ = false;
  Stretch stretch{.seconds = work_seconds_, .rate = {}};
  if (samples_ > 0) stretch.rate = {.peak = sum_.peak / samples_, .mean = sum_.mean / samples_};
  return stretch;
}

}  // namespace llmtrain::plan
