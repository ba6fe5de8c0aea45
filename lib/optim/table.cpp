#include <array>

#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

std::span<const OptimizerRow> optimizer_table() {
  static const std::array kRows{
      adamw(),   adam(),    sgd(),       momentum(),   nesterov(),  adagrad(), rmsprop(),
      amsgrad(), lion(),    adam_mini(), adafactor(),  came(),      sm3(),     muon(),
      galore(),  ldadamw(), q_galore(),  adamw_8bit(), lion_8bit(),
  };
  return kRows;
}

}  // namespace llmtrain::optim
