#include "lib/plan/fma_peak.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

using Clock = std::chrono::steady_clock;

// Runs `steps` rounds of independent chains of x += 1 * 1 and returns the sum of all x: the number
// of multiply-adds that were done, counted by themselves.
using Chains = double (*)(long steps);

double sum_of(std::span<const float> lanes) {
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

// 64 scalars let the compiler do with what the baseline has what the forms below say themselves.
double plain_chains(long steps) {
  float sum[64] = {};
  float one = 1;
  asm volatile("" : "+m"(one));  // not a constant that the compiler knows
  for (long s = 0; s < steps; ++s) {
    for (float& x : sum) x = x + one * one;
    asm volatile("" ::"r"(sum) : "memory");
  }
  return sum_of(sum);
}

#if defined(__x86_64__)
// Written out in registers: a compiler would fold the chains. Sixteen of them (twelve where there
// are sixteen registers in all) hide the latency of two multiply-add units.
#define LLMTRAIN_CLOBBERED                                                                        \
  "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
      "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
// `ones` are the 32 bits of a lane that hold nothing but ones of the instruction's type.
#define LLMTRAIN_AVX512_CHAINS(instruction)                        \
  float lanes[16];                                                 \
  asm volatile(                                                    \
      "vzeroall\n vpbroadcastd %2,%%zmm16\n"                       \
      "1:\n"                                                       \
      ".irp c,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n" instruction \
      " %%zmm16,%%zmm16,%%zmm\\c\n"                                \
      ".endr\n"                                                    \
      "dec %0\n jnz 1b\n"                                          \
      ".irp c,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"               \
      "vaddps %%zmm\\c,%%zmm0,%%zmm0\n"                            \
      ".endr\n"                                                    \
      "vmovups %%zmm0,%1\n vzeroupper"                             \
      : "+r"(steps), "=m"(lanes)                                   \
      : "m"(ones)                                                  \
      : LLMTRAIN_CLOBBERED, "xmm16");                              \
  return sum_of(lanes)

__attribute__((target("avx512f"))) double avx512_chains(long steps) {
  const float ones = 1;
  LLMTRAIN_AVX512_CHAINS("vfmadd231ps");
}

// A lane adds the products of two pairs of bf16: two multiply-adds.
__attribute__((target("avx512f"))) double avx512_bf16_chains(long steps) {
  const std::uint32_t ones = 0x3F80'3F80;
  LLMTRAIN_AVX512_CHAINS("vdpbf16ps");
}

__attribute__((target("avx2,fma"))) double avx2_chains(long steps) {
  float lanes[8];
  const float one = 1;
  asm volatile(
      "vzeroall\n vbroadcastss %2,%%ymm12\n"
      "1:\n"
      ".irp c,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vfmadd231ps %%ymm12,%%ymm12,%%ymm\\c\n"
      ".endr\n"
      "dec %0\n jnz 1b\n"
      ".irp c,1,2,3,4,5,6,7,8,9,10,11\n"
      "vaddps %%ymm\\c,%%ymm0,%%ymm0\n"
      ".endr\n"
      "vmovups %%ymm0,%1\n vzeroupper"
      : "+r"(steps), "=m"(lanes)
      : "m"(one)
      : LLMTRAIN_CLOBBERED);
  return sum_of(lanes);
}

#undef LLMTRAIN_AVX512_CHAINS
#undef LLMTRAIN_CLOBBERED
#endif

Chains chains_for([[maybe_unused]] DType compute) {
#if defined(__x86_64__)
  if (compute == DType::bf16 && __builtin_cpu_supports("avx512bf16")) return avx512_bf16_chains;
  if (__builtin_cpu_supports("avx512f")) return avx512_chains;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_chains;
#endif
  return plain_chains;
}

}  // namespace

FmaRate rate_of(std::span<const FmaWindow> windows) {
  FmaWindow all;
  FmaRate rate;
  for (const FmaWindow& window : windows) {
    all.flops += window.flops;
    all.seconds += window.seconds;
    rate.peak = std::max(rate.peak, window.flops / window.seconds);
  }
  rate.mean = all.flops / all.seconds;
  return rate;
}

FmaRate measure_fma_rate(DType compute, int threads, double seconds) {
  require(compute == DType::f32 || is_half_width(compute), "no peak for {}", to_string(compute));
  constexpr long kSteps = 400'000;  // every sum of ones stays below 2^24, where floats still count
  const Chains chains = chains_for(compute);
  const auto seconds_from = [](Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
  };
  std::vector<FmaWindow> windows;
  const Clock::time_point start = Clock::now();
  Clock::time_point begin = start, end = start;
  do {
    double multiply_adds = 0;
#pragma omp parallel num_threads(threads) reduction(+ : multiply_adds)
    multiply_adds += chains(kSteps);
    end = Clock::now();
    windows.push_back({2 * multiply_adds, seconds_from(begin, end)});
    begin = end;
  } while (seconds_from(start, end) < seconds);
  return rate_of(windows);
}

}  // namespace llmtrain::plan
