#include "lib/plan/fma_peak.hpp"

#include <algorithm>
#include <chrono>

#include "lib/base/require.hpp"

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
// Written out in registers: a compiler would fold the constant chains. All values are zero, which
// costs these units as much as any other number.
#define LLMTRAIN_CLOBBERED                                                                       \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

__attribute__((target("avx512f"))) void avx512_chains(long steps) {
  asm volatile(
      "vzeroall\n vpxorq %%zmm16,%%zmm16,%%zmm16\n"
      "1:\n"
      ".irp c,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vfmadd231ps %%zmm16,%%zmm16,%%zmm\\c\n"
      ".endr\n"
      "dec %0\n jnz 1b\n vzeroupper"
      : "+r"(steps)::LLMTRAIN_CLOBBERED, "xmm16");
}

__attribute__((target("avx512f"))) void avx512_bf16_chains(long steps) {
  asm volatile(
      "vzeroall\n vpxorq %%zmm16,%%zmm16,%%zmm16\n"
      "1:\n"
      ".irp c,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
      "vdpbf16ps %%zmm16,%%zmm16,%%zmm\\c\n"
      ".endr\n"
      "dec %0\n jnz 1b\n vzeroupper"
      : "+r"(steps)::LLMTRAIN_CLOBBERED, "xmm16");
}

// Twelve chains, for there are sixteen registers.
__attribute__((target("avx2,fma"))) void avx2_chains(long steps) {
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp c,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "vfmadd231ps %%ymm12,%%ymm12,%%ymm\\c\n"
      ".endr\n"
      "dec %0\n jnz 1b\n vzeroupper"
      : "+r"(steps)::LLMTRAIN_CLOBBERED);
}

#undef LLMTRAIN_CLOBBERED
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
