#pragma once
/// The keys of Lion, whatever its state is kept in.

#include <vector>

#include "lib/optim/decay_order.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

struct LionOptions : UpdateOptions {
  LionOptions() : UpdateOptions(1e-4) {}

  recipe::Key<std::vector<double>> betas{
      this,
      "betas",
      {0.9, 0.99},
      "how much of the mean gradient is in the step's sign, and the mean's decay",
      recipe::at_least(0) & recipe::below(1) & recipe::length(2)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this};
};

}  // namespace llmtrain::optim
