#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

kernels::UpdateOperands update_operands(const Parameter& parameter) {
  return {.parameter = parameter.master(),
          .gradient = parameter.own_grad(),
          .compute_copy = parameter.has_separate_copy() ? parameter.own_compute().view() : View{},
          .remainder = parameter.remainder(),
          .rounding = parameter.rounding()};
}

}  // namespace llmtrain::optim
