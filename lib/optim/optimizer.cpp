#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

kernels::UpdateOperands update_operands(const Parameter& parameter, const View& decision) {
  return {.parameter = parameter.master(),
          .gradient = parameter.grad(),
          .compute_copy = parameter.has_separate_master() ? parameter.compute().view() : View{},
          .decision = decision};
}

}  // namespace llmtrain::optim
