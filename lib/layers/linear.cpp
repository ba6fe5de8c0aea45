#include "lib/layers/linear.hpp"

namespace llmtrain::layers {

namespace {

Placement placement_of_weight(TpSplit split, int replicas) {
  Placement placement;
  if (split == TpSplit::outputs) placement[Axis::tp] = {.split_dim = 0, .replicas = replicas};
  if (split == TpSplit::inputs) placement[Axis::tp] = {.split_dim = 1};
  return placement;
}

Placement placement_of_bias(TpSplit split, int replicas) {
  return split == TpSplit::outputs ? placement_of_weight(split, replicas) : Placement{};
}

}  // namespace

Linear::Linear(ParameterStore& store, const std::vector<LinearOutput>& outputs,
               const LinearOptions& options)
    : split_(options.split),
      adds_bias_(options.split != TpSplit::inputs || store.mesh().index(Axis::tp) == 0) {
  std::vector<ParameterSpec> weights;
  std::vector<ParameterSpec> biases;
  for (const LinearOutput& output : outputs) {
    weights.push_back({.name = output.name + ".weight",
                       .shape = {output.out_features, options.in_features},
                       .role = ParameterRole::matrix,
                       .init = {Initializer::Kind::normal, options.init_std},
                       .placement = placement_of_weight(options.split, output.replicas),
                       .rows_per_head = output.rows_per_head,
                       .linear = true});
    biases.push_back({.name = output.name + ".bias",
                      .shape = {output.out_features},
                      .role = ParameterRole::bias,
                      .init = {},
                      .placement = placement_of_bias(options.split, output.replicas)});
  }
  weight_ = &store.declare(std::move(weights));
  if (options.bias) bias_ = &store.declare(std::move(biases));
}

Var Linear::forward(const OpCtx& ctx, const Var& x) const {
  if (split_ == TpSplit::outputs) return ops::linear(ctx, ops::copy_to_tp(ctx, x), weights());
  Var y = ops::linear(ctx, x, weights());
  return split_ == TpSplit::inputs ? ops::reduce_from_tp(ctx, std::move(y)) : y;
}

}  // namespace llmtrain::layers
