#include "lib/plan/memory_probe.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "kernels/elementwise.hpp"
#include "lib/plan/kernel_bench.hpp"

namespace llmtrain::plan {

// Best rates taken in turn, as for the peak of multiply-adds: a disturbance must hit all windows of
// one and none of the other.
TEST_CASE("the memory's rate is about what an addition of blocks in memory reaches") {
  constexpr std::int64_t kElements = std::int64_t{8} << 20;
  KernelBench bench(kernels::cpu_table(), 2, std::uint64_t{128} << 20);
  MemoryProbe probe(2);
  double memory = 0, addition = 0;
  for (int round = 0; round < 10; ++round) {
    memory = std::max(memory, probe.pass_rate());
    const LaunchTime time = bench.launch(kernels::Add{bench.input(1, kElements, DType::f32),
                                                      bench.input(1, kElements, DType::f32),
                                                      bench.result(1, kElements, DType::f32)});
    addition = std::max(addition, 3.0 * sizeof(float) * kElements / time.seconds);
  }
  CAPTURE(memory);
  CAPTURE(addition);
  CHECK(memory > 0.5 * addition);  // writing what was not read costs a read more
  CHECK(memory < 5 * addition);
}

}  // namespace llmtrain::plan
