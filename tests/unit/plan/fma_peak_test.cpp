#include "lib/plan/fma_peak.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/plan/kernel_bench.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

// Nothing is asserted about durations, only about the ratio of two rates that were taken in turn.
TEST_CASE("the peak is above what a large product reaches, and not far above") {
  constexpr std::int64_t kSize = 768;
  constexpr int kRounds = 20;
  KernelBench bench(kernels::cpu_table(), 1, std::uint64_t{64} << 20);
  double peak = 0, product = 0;
  for (int round = 0; round < kRounds; ++round) {
    peak = std::max(peak, measure_fma_rate(DType::f32, 1, 0.01).peak);
    const LaunchTime time = launch_matmul(bench, DType::f32, 0, kSize, kSize, kSize);
    product = std::max(product, 2.0 * kSize * kSize * kSize / time.seconds);
  }
  CAPTURE(peak);
  CAPTURE(product);
  CHECK(product <= 1.05 * peak);
  CHECK(product >= 0.45 * peak);
}

}  // namespace llmtrain::plan
