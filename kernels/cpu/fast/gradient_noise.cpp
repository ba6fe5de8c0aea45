#include "kernels/gradient_noise.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/gradient_noise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Numbers are made in a loop without branches, which the compiler turns into vectors, and then
/// again where they are in an outer part of the quantile.
void gradient_noise(const NoisyGradient& of, std::uint64_t step, double deviation,
                    const Segment& at) {
  std::uint32_t words[kPass];
  double normal[kPass];
  draw_for_pass(of.words, step, at, words);
  for (std::int64_t i = 0; i < at.count; ++i) {
    normal[i] = central_quantile(unit_interval(words[i]) - 0.5);
  }
  for (std::int64_t i = 0; i < at.count; ++i) {
    const double q = unit_interval(words[i]) - 0.5;
    if (q > kCentralQuantile || q < -kCentralQuantile) normal[i] = plain_normal(words[i]);
  }
  float* gradient = at.of<float>(of.to);
  for (std::int64_t i = 0; i < at.count; ++i) {
    gradient[i] = GradientNoise::noisy(gradient[i], deviation, normal[i]);
  }
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(gradient_noise);

namespace {

void run_gradient_noise(const KernelCtx& ctx, const GradientNoise& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const std::uint64_t step = GradientNoise::step(decision);
  const double deviation = op.deviation(decision);
  for_chunks(ctx.threads, op.table, only_row<GradientNoise>(op.table, op.gradients),
             [&](std::size_t row, std::int64_t, std::int64_t begin, std::int64_t end) {
               for_passes(begin, end, [&](const Segment& at) {
                 HWY_DYNAMIC_DISPATCH(gradient_noise)(op.gradients[row], step, deviation, at);
               });
             });
}

}  // namespace

void add_gradient_noise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GradientNoise, run_gradient_noise>());
}

}  // namespace llmtrain::kernels::fast
#endif
