#include "lib/layers/mlp.hpp"

namespace llmtrain::layers {

namespace {

std::vector<LinearOutput> inputs_of(const std::string& name, const MlpConfig& config) {
  const LinearOutput up{name + ".up_proj", config.intermediate_size};
  if (!config.gated) return {up};
  return {{name + ".gate_proj", config.intermediate_size}, up};
}

}  // namespace

Mlp::Mlp(ParameterStore& store, const std::string& name, const MlpConfig& config)
    : activation_(config.activation),
      gated_(config.gated),
      in_(store, inputs_of(name, config),
          {.in_features = config.hidden_size,
           .bias = config.bias,
           .init_std = config.init_std,
           .split = TpSplit::outputs}),
      out_(store, {{name + ".down_proj", config.hidden_size}},
           {.in_features = config.intermediate_size,
            .bias = config.bias,
            .init_std = config.output_init_std,
            .split = TpSplit::inputs}) {}

Var Mlp::forward(const OpCtx& ctx, const Var& x) const {
  return ops::reduce_from_tp(ctx, term(ctx, ops::copy_to_tp(ctx, x)));
}

Var Mlp::term(const OpCtx& ctx, const Var& x) const {
  if (!gated_) return ops::mlp(ctx, x, in_.weights(), activation_, out_.weights());
  const Var up = ops::up_projection(ctx, x, in_.weights());
  return ops::linear(ctx, ops::gated_activation(ctx, up, activation_), out_.weights());
}

}  // namespace llmtrain::layers
