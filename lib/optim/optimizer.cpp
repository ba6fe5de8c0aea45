#include "lib/optim/optimizer.hpp"

#include <cstddef>

#include "lib/base/require.hpp"

namespace llmtrain::optim {

namespace {

void narrow_to(const ParameterSlice& part, const std::string& name, kernels::UpdateOperands& to) {
  const auto [first, count] = part;
  for (View* view : {&to.parameter, &to.gradient, &to.compute_copy, &to.remainder}) {
    if (!view->defined()) continue;
    require(view->contiguous() && first + count <= view->numel(),
            "{}: elements {} to {} of an update of {}", name, first, first + count, view->numel());
    view->data = view->as<std::byte>() + static_cast<std::size_t>(first) * size_of(view->dtype);
    view->shape = {count};
    view->row_stride = count;
  }
  to.rounding.before += first;
}

}  // namespace

kernels::UpdateOperands update_operands(const OptimizedParameter& optimized) {
  const Parameter& parameter = *optimized.parameter;
  const bool has_copy = parameter.has_separate_copy();
  kernels::UpdateOperands to{.parameter = parameter.master(),
                             .gradient = parameter.own_grad(),
                             .compute_copy = has_copy ? parameter.own_compute().view() : View{},
                             .remainder = parameter.remainder(),
                             .rounding = parameter.rounding()};
  if (optimized.part) narrow_to(*optimized.part, parameter.name(), to);
  if (optimized.gradient.defined()) to.gradient = optimized.gradient;
  if (optimized.copy.defined()) (has_copy ? to.compute_copy : to.parameter) = optimized.copy;
  if (!optimized.master.defined()) return to;
  const bool whole = parameter.master_form() == MasterForm::whole;
  (whole ? to.parameter : to.remainder) = optimized.master;
  return to;
}

kernels::StateRounding state_rounding(const OptimizedParameter& optimized) {
  kernels::StateRounding rounding = optimized.rounding;
  if (optimized.part) rounding.words.before += optimized.part->first;
  return rounding;
}

}  // namespace llmtrain::optim
