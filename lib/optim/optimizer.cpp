#include "lib/optim/optimizer.hpp"

#include <cstddef>

#include "lib/base/require.hpp"

namespace llmtrain::optim {

kernels::UpdateOperands update_operands(const Parameter& parameter) {
  return {.parameter = parameter.master(),
          .gradient = parameter.own_grad(),
          .compute_copy = parameter.has_separate_copy() ? parameter.own_compute().view() : View{},
          .remainder = parameter.remainder(),
          .rounding = parameter.rounding()};
}

kernels::UpdateOperands update_operands(const OptimizedParameter& optimized) {
  kernels::UpdateOperands to = update_operands(*optimized.parameter);
  if (!optimized.part) return to;
  const auto [first, count] = *optimized.part;
  for (View* view : {&to.parameter, &to.gradient, &to.compute_copy, &to.remainder}) {
    if (!view->defined()) continue;
    require(view->contiguous() && first + count <= view->numel(),
            "{}: elements {} to {} of an update of {}", optimized.parameter->name(), first,
            first + count, view->numel());
    view->data = view->as<std::byte>() + static_cast<std::size_t>(first) * size_of(view->dtype);
    view->shape = {count};
    view->row_stride = count;
  }
  to.rounding.before += first;
  return to;
}

kernels::StateRounding state_rounding(const OptimizedParameter& optimized) {
  kernels::StateRounding rounding = optimized.rounding;
  if (optimized.part) rounding.words.before += optimized.part->first;
  return rounding;
}

}  // namespace llmtrain::optim
