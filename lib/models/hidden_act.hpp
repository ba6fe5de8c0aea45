#pragma once
/// The recipe rule for `hidden_act`, from the table of activation functions.

#include "lib/ops/activations.hpp"
#include "lib/recipe/rule.hpp"

namespace llmtrain::models {

inline recipe::Names<kernels::Activation> activation_names() {
  recipe::Names<kernels::Activation> names;
  for (const std::string_view name : kernels::activation_names()) {
    names.rows.emplace_back(name, *kernels::parse_activation(name));
    names.allowed.emplace_back(name);
  }
  return names;
}

}  // namespace llmtrain::models
