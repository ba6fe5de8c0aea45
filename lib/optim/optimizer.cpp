#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

kernels::UpdateOperands update_operands(const Parameter& parameter, double grad_scale) {
  return {.parameter = parameter.master(),
          .gradient = parameter.grad(),
          .compute_copy = parameter.has_separate_master() ? parameter.compute().view() : View{},
          .grad_scale = grad_scale};
}

}  // namespace llmtrain::optim
