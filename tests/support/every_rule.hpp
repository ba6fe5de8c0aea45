#pragma once
/// Element-wise update rules for tests that go through all of them.

#include <vector>

#include "kernels/update_rules.hpp"

namespace llmtrain::test {

/// Every alternative of UpdateRule with numbers other than the default's, Momentum with and without
/// its look ahead.
inline std::vector<kernels::UpdateRule> every_rule() {
  using namespace kernels::rules;
  return {Sgd{},
          Momentum{.momentum = 0.8, .dampening = 0.2},
          Momentum{.momentum = 0.8, .nesterov = true},
          Adagrad{.lr_decay = 0.1, .eps = 1e-6},
          Rmsprop<false, false>{.alpha = 0.9, .eps = 1e-6},
          Rmsprop<false, true>{.alpha = 0.9, .eps = 1e-6, .momentum = 0.7},
          Rmsprop<true, false>{.alpha = 0.9, .eps = 1e-6},
          Rmsprop<true, true>{.alpha = 0.9, .eps = 1e-6, .momentum = 0.7},
          Amsgrad{{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6}},
          Lion{.beta1 = 0.8, .beta2 = 0.9},
          AdamEpsHat{{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6}}};
}

/// What a state of this name may hold: squares are not negative.
inline bool is_square(std::string_view state) {
  return state == "v" || state == "v_max" || state == "sum";
}

}  // namespace llmtrain::test
