#pragma once
/// Which optimizers a host can update with for a device, known without either.

#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// Why no host computes an optimizer's updates for a device; empty: it does, with the device's
/// bits.
std::string_view obstacle_to_host_updates(const OptimizerRow& optimizer);

}  // namespace llmtrain::optim
