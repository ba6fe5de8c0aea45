#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

kernels::UpdateOperands update_operands(const Parameter& parameter) {
  if (parameter.is_sliced()) {
    const bool separate = parameter.has_separate_copy();
    const View compute = parameter.own_part(parameter.compute());
    return {.parameter = separate ? parameter.master().view() : compute,
            .gradient = parameter.own_part(parameter.grad()),
            .compute_copy = separate ? compute : View{},
            .remainder = parameter.remainder(),
            .rounding = parameter.rounding()};
  }
  return {.parameter = parameter.master(),
          .gradient = parameter.grad(),
          .compute_copy = parameter.has_separate_copy() ? parameter.compute().view() : View{},
          .remainder = parameter.remainder(),
          .rounding = parameter.rounding()};
}

}  // namespace llmtrain::optim
