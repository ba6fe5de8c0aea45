#include "lib/optim/subspace_optimizer.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain::optim {

using kernels::Matmul;

void Subspace::project(const kernels::KernelCtx& ctx, const View& g, const View& vectors,
                       const View& to) const {
  launch(ctx, Matmul{.a = right ? g : vectors,
                     .b = right ? vectors : g,
                     .c = to,
                     .bias = {},
                     .transpose_a = !right,
                     .transpose_b = right});
}

void Subspace::take_back(const kernels::KernelCtx& ctx, const View& x, const View& vectors,
                         const View& to, bool accumulate) const {
  launch(ctx, Matmul{.a = right ? x : vectors,
                     .b = right ? vectors : x,
                     .c = to,
                     .bias = {},
                     .accumulate = accumulate});
}

Subspace SubspaceOptimizer::subspace_of(const Parameter& parameter) const {
  const Shape& shape = parameter.global_shape();
  const std::int64_t m = shape[shape.rank() - 2], n = shape[shape.rank() - 1];
  const std::int64_t r = std::min({settings_.rank, m, n});
  const bool right = m > n || (m == n && settings_.square_from_right);
  if (right) return {true, {r, n}, {m, r}};
  return {false, {m, r}, {r, n}};
}

std::vector<StateSpec> SubspaceOptimizer::matrix_states(const Parameter& parameter) const {
  const Subspace of = subspace_of(parameter);
  const auto state = [&](std::string_view name, const Shape& matrix) {
    return StateSpec{.name = name, .dtype = parameter.master_dtype(), .matrix = matrix};
  };
  return {state("projector", of.projector), state("m", of.inside), state("v", of.inside)};
}

void SubspaceOptimizer::update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                                        const View& decision) const {
  const Parameter& parameter = *p.parameter;
  const Shape& shape = parameter.box().shape;
  const MatrixParts parts(parameter, mesh());
  // The clipped gradient, and in its place the step.
  const Tensor step = ctx.device->allocate(shape, parameter.master_dtype(), Category::workspace,
                                           "step of a matrix");
  launch(ctx, kernels::ScaleUpdate{.x = p.whole_gradient(),
                                   .y = step,
                                   .decision = decision,
                                   .scale = {.value = 1, .clipped = true}});
  add_leftover(ctx, p, step);
  // Experts have a matrix each.
  const std::int64_t rows = shape[shape.rank() - 2], count = step.view().rows() / rows;
  const Subspace of = subspace_of(parameter);
  for (std::int64_t k = 0; k < count; ++k) {
    const auto part_of = [&](const Tensor& all) {
      const std::int64_t each = all.view().rows() / count;
      return all.row_range(k * each, each);
    };
    const Tensor part = part_of(step);
    WholeMatrix matrix{.of = of, .parts = parts, .g = parts.whole(ctx, part), .states = {}};
    for (const Tensor& state : p.states) matrix.states.push_back(part_of(state));
    step_matrix(ctx, matrix, decision);
    if (!parts.are_several()) continue;
    launch(ctx, kernels::ScaleCast{.x = parts.own(matrix.g.view()), .y = part});
  }
  step_along(ctx, p, step, decision, settings_.factor, settings_.decay);
}

}  // namespace llmtrain::optim
