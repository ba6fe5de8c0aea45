#include "lib/plan/fma_peak.hpp"

#include <algorithm>
#include <chrono>

#include "lib/base/require.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace llmtrain::plan {

namespace {

using Clock = std::chrono::steady_clock;

// Sixteen independent chains hide the latency of two multiply-add units; 64 scalars per step of the
// plain form let the compiler do the same with what the baseline has.
constexpr int kChains = 16;

struct Chains {
  void (*run)(long steps);
  double flops_per_step;
};

void plain_chains(long steps) {
  float sum[4 * kChains] = {};
  for (long s = 0; s < steps; ++s) {
    for (float& x : sum) x = x * 0.999f + 1e-6f;
    asm volatile("" ::"r"(sum) : "memory");
  }
}

#if defined(__x86_64__)
// The instructions are written out: a compiler would fold the constant chains.
__attribute__((target("avx512f"))) void avx512_chains(long steps) {
  const __m512 a = _mm512_set1_ps(0.999f);
  const __m512 b = _mm512_set1_ps(1e-6f);
  __m512 c[kChains];
  for (__m512& x : c) x = _mm512_setzero_ps();
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 16
    for (__m512& x : c) asm volatile("vfmadd231ps %1,%2,%0" : "+v"(x) : "v"(a), "v"(b));
  }
}

__attribute__((target("avx512f"))) void avx512_bf16_chains(long steps) {
  const __m512i a = _mm512_set1_epi32(0x3f803f80);  // pairs of bf16 1.0
  const __m512i b = _mm512_set1_epi32(0x31003100);
  __m512 c[kChains];
  for (__m512& x : c) x = _mm512_setzero_ps();
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 16
    for (__m512& x : c) asm volatile("vdpbf16ps %1,%2,%0" : "+v"(x) : "v"(a), "v"(b));
  }
}

__attribute__((target("avx2,fma"))) void avx2_chains(long steps) {
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(1e-6f);
  __m256 c[12];  // of sixteen registers
  for (__m256& x : c) x = _mm256_setzero_ps();
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (__m256& x : c) asm volatile("vfmadd231ps %1,%2,%0" : "+x"(x) : "x"(a), "x"(b));
  }
}
#endif

Chains chains_for([[maybe_unused]] DType compute) {
#if defined(__x86_64__)
  if (compute == DType::bf16 && __builtin_cpu_supports("avx512bf16")) {
    return {avx512_bf16_chains, kChains * 16 * 2 * 2.0};
  }
  if (__builtin_cpu_supports("avx512f")) return {avx512_chains, kChains * 16 * 2.0};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {avx2_chains, 12 * 8 * 2.0};
  }
#endif
  return {plain_chains, 4 * kChains * 2.0};
}

}  // namespace

double measure_fma_peak(DType compute, int threads) {
  require(compute == DType::f32 || compute == DType::bf16, "no peak for {}", to_string(compute));
  constexpr long kSteps = 400'000;
  constexpr int kWindows = 40;
  const Chains chains = chains_for(compute);
  double best = 1e30;
  for (int window = 0; window < kWindows; ++window) {
    const Clock::time_point begin = Clock::now();
#pragma omp parallel num_threads(threads)
    chains.run(kSteps);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return static_cast<double>(kSteps) * chains.flops_per_step * threads / best;
}

}  // namespace llmtrain::plan
