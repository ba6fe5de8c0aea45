#include "lib/plan/fma_peak.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/plan/kernel_bench.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

// Nothing is asserted about durations, only about the best rates of short windows taken in turn: on
// a busy machine both need only one window without a disturbance. A peak that is too high is seen
// nowhere.
TEST_CASE("the peak is above what a product reaches") {
  constexpr std::int64_t kSize = 384;
  constexpr int kRounds = 60;
  KernelBench bench(kernels::cpu_table(), 1, std::uint64_t{16} << 20);
  FmaRate best;
  double product = 0;
  for (int round = 0; round < kRounds; ++round) {
    const FmaRate rate = measure_fma_rate(DType::f32, 1, 0.005);
    CHECK(rate.mean <= rate.peak);
    best.peak = std::max(best.peak, rate.peak);
    const LaunchTime time = launch_matmul(bench, DType::f32, 0, kSize, kSize, kSize);
    product = std::max(product, 2.0 * kSize * kSize * kSize / time.seconds);
  }
  CAPTURE(best.peak);
  CAPTURE(product);
  CHECK(product <= 1.1 * best.peak);
}

}  // namespace llmtrain::plan
