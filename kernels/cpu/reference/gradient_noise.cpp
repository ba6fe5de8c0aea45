#include "kernels/gradient_noise.hpp"

#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

void gradient_noise(const KernelCtx&, const GradientNoise& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const std::uint64_t step = GradientNoise::step(decision);
  const double deviation = op.deviation(decision);
  for (const NoisyGradient& of : op.gradients) {
    with_master_type(of.to.dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < of.to.numel(); ++i) {
        const std::uint32_t word = philox_word(of.words.key, step, of.words.index(i));
        T& g = of.to.as<T>()[i];
        g = GradientNoise::noisy(g, deviation, plain_normal(word));
      }
    });
  }
}

}  // namespace

void add_gradient_noise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GradientNoise, gradient_noise>());
}

}  // namespace llmtrain::kernels::reference
