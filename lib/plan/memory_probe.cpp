#include "lib/plan/memory_probe.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/plan/machine.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30;

std::uint64_t block_bytes() {
  constexpr std::uint64_t kCaches = 4;  // the block is as large as so many last-level caches
  return std::clamp(kCaches * machine_facts().cache_bytes, kLeastBytes, kMostBytes);
}

// The widest vectors: a narrow loop may be slower than the memory.
using Scale = void (*)(float* x, std::int64_t count, float factor);

[[gnu::always_inline]] inline void scale(float* x, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}
void scale_plainly(float* x, std::int64_t count, float factor) { scale(x, count, factor); }
#if defined(__x86_64__)
[[gnu::target("avx2")]] void scale_avx2(float* x, std::int64_t count, float factor) {
  scale(x, count, factor);
}
[[gnu::target("avx512f")]] void scale_avx512(float* x, std::int64_t count, float factor) {
  scale(x, count, factor);
}
#endif

Scale scale_here() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return scale_avx512;
  if (__builtin_cpu_supports("avx2")) return scale_avx2;
#endif
  return scale_plainly;
}

}  // namespace

MemoryProbe::MemoryProbe(int threads) : threads_(threads) {
  const std::uint64_t bytes = block_bytes();
  device_ = std::make_unique<Device>(make_cpu_memory(), bytes);
  block_ = device_->allocate({static_cast<std::int64_t>(bytes / sizeof(float))}, DType::f32,
                             Category::workspace, "memory probe");
  std::fill_n(block_.view().as<float>(), block_.view().numel(), 1.0F);
}

double MemoryProbe::pass_rate() {
  using Clock = std::chrono::steady_clock;
  const Scale scale = scale_here();
  float* const x = block_.view().as<float>();
  const std::int64_t count = block_.view().numel();
  float factor = 1;
  asm volatile("" : "+m"(factor));  // not a constant that the compiler knows
  const Clock::time_point begin = Clock::now();
#pragma omp parallel for schedule(static) num_threads(threads_)
  for (int t = 0; t < threads_; ++t) {
    const std::int64_t from = count * t / threads_, to = count * (t + 1) / threads_;
    scale(x + from, to - from, factor);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return 2 * sizeof(float) * static_cast<double>(count) / seconds;
}

double MemoryProbe::rate() {
  std::array<double, 5> rates;
  for (double& rate : rates) rate = pass_rate();
  std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
  return rates[rates.size() / 2];
}

}  // namespace llmtrain::plan
