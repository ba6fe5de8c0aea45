#include "lib/plan/fma_sampler.hpp"

#include <chrono>
#include <thread>

#include <doctest/doctest.h>

namespace llmtrain::plan {

namespace {

// Sleeping takes at least as long as it is told to: what is asserted below holds on any machine.
void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

constexpr double kPiece = 1.1 * FmaSampler::kWorkSeconds;

/// Samples of a hundredth of a second with the rates 1, 2, 3 ... as peaks, and half of it as means.
class Samples {
 public:
  FmaRate operator()() {
    sleep(kSeconds);
    ++count_;
    return {.peak = double(count_), .mean = 0.5 * count_};
  }
  static constexpr double kSeconds = 0.01;

 private:
  int count_ = 0;
};

}  // namespace

TEST_CASE("samples are taken at both ends and in long work, and are no work") {
  FmaSampler sampler{Samples()};
  const auto begin = std::chrono::steady_clock::now();
  sampler.begin();
  sleep(kPiece);
  sampler.pause();
  sleep(kPiece);
  sampler.pause();
  const FmaSampler::Stretch stretch = sampler.end();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  CHECK(stretch.rate.peak == 2.5);  // of 1, 2, 3, 4
  CHECK(stretch.rate.mean == 1.25);
  CHECK(stretch.seconds >= 2 * kPiece);
  CHECK(wall.count() >= stretch.seconds + 4 * Samples::kSeconds);
}

TEST_CASE("each stretch has its own samples") {
  FmaSampler sampler{Samples()};
  sampler.begin();
  CHECK(sampler.end().rate.peak == 1.5);
  sampler.begin();
  const FmaSampler::Stretch second = sampler.end();
  CHECK(second.rate.peak == 3.5);
}

TEST_CASE("nothing is sampled outside of a stretch, nor without a measure") {
  FmaSampler with{Samples()};
  sleep(kPiece);
  with.pause();
  with.begin();
  CHECK_THROWS(with.begin());
  CHECK(with.end().rate.peak == 1.5);
  CHECK_THROWS(with.end());

  FmaSampler without(nullptr);
  without.begin();
  sleep(kPiece);
  without.pause();
  const FmaSampler::Stretch stretch = without.end();
  CHECK(stretch.rate.peak == 0);
  CHECK(stretch.rate.mean == 0);
  CHECK(stretch.seconds >= kPiece);
}

}  // namespace llmtrain::plan
