#include "kernels/gradient_noise.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_operands.hpp"

namespace llmtrain::kernels {

std::vector<GradientNoise::Row> GradientNoise::rows(std::span<const NoisyGradient> gradients) {
  return table_rows<Row>(gradients, [](const NoisyGradient& g) {
    return Row{.place = {.numel = g.to.numel()}, .gradient = g.to.data, .words = g.words};
  });
}

void GradientNoise::check() const {
  const Operands operands(name);
  check_table<Row>(operands, table, gradients.size());
  check_decision(operands, decision);
  operands.expects(dtype() == DType::f64 || dtype() == DType::f32, "gradients in FP32 or FP64");
  for (const NoisyGradient& g : gradients) {
    operands.dense("gradient", g.to, g.to.numel(), {dtype()});
    operands.expects(g.words.on, "random words of each gradient");
  }
  operands.expects(eta > 0, "eta > 0");
  operands.expects(gamma >= 0, "gamma >= 0");
}

Cost GradientNoise::cost() const {
  Cost cost;
  for (const NoisyGradient& g : gradients) cost += memory_cost({g.to}, {g.to});
  return cost;
}

std::array<std::int64_t, 4> GradientNoise::sizes() const { return {numel_of(gradients)}; }

}  // namespace llmtrain::kernels
