#include "lib/layers/norm.hpp"

namespace llmtrain::layers {

namespace {

// Between layers that ranks share, each may have rows of its own, and knows the gradient by those.
Placement between_layers(const Mesh& mesh) {
  Placement placement;
  placement[Axis::tp].grad_partial = mesh.tp_shares_rows();
  return placement;
}

}  // namespace

Norm::Norm(ParameterStore& store, const std::string& name, std::int64_t hidden, bool bias,
           const ops::NormOptions& options)
    : options_(options) {
  const Placement placement = between_layers(store.mesh());
  weight_ = &store.declare(
      {.name = name + ".weight",
       .shape = {hidden},
       .role = ParameterRole::norm,
       .init = options.weight_offset == 0 ? Initializer{Initializer::Kind::ones} : Initializer{},
       .placement = placement});
  if (bias) {
    bias_ = &store.declare({.name = name + ".bias",
                            .shape = {hidden},
                            .role = ParameterRole::bias,
                            .init = {},
                            .placement = placement});
  }
}

}  // namespace llmtrain::layers
