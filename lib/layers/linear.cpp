#include "lib/layers/linear.hpp"

namespace llmtrain::layers {

Linear::Linear(ParameterStore& store, const std::vector<LinearOutput>& outputs,
               const LinearOptions& options) {
  std::vector<ParameterSpec> weights;
  std::vector<ParameterSpec> biases;
  for (const LinearOutput& output : outputs) {
    weights.push_back({.name = output.name + ".weight",
                       .shape = {output.out_features, options.in_features},
                       .role = ParameterRole::matrix,
                       .init = {Initializer::Kind::normal, options.init_std}});
    biases.push_back({.name = output.name + ".bias",
                      .shape = {output.out_features},
                      .role = ParameterRole::bias,
                      .init = {}});
  }
  weight_ = &store.declare(std::move(weights));
  if (options.bias) bias_ = &store.declare(std::move(biases));
}

}  // namespace llmtrain::layers
