#pragma once
/// Which learning rate and weight decay each parameter gets.

#include <memory>
#include <span>
#include <vector>

#include "lib/optim/optimizer_options.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

struct ParameterSettings {
  double lr_scale = 1;
  double weight_decay = 0;
};

/// One per parameter, in the given order: `weight_decay` unless `no_decay` selects the parameter,
/// then what the last matching group says. RecipeError for a pattern, or a group, that selects
/// nothing; a role in `no_decay` may, because not every model has biases.
std::vector<ParameterSettings> parameter_settings(
    const OptimizerOptions& options, double weight_decay,
    std::span<const std::unique_ptr<Parameter>> parameters);

}  // namespace llmtrain::optim
