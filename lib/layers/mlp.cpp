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
          {.in_features = config.hidden_size, .bias = config.bias, .init_std = config.init_std}),
      out_(store, {{name + ".down_proj", config.hidden_size}},
           {.in_features = config.intermediate_size,
            .bias = config.bias,
            .init_std = config.output_init_std}) {}

Var Mlp::forward(const OpCtx& ctx, const Var& x) const {
  Var h = in_.forward(ctx, x);
  h = gated_ ? ops::gated_activation(ctx, h, activation_) : ops::activation(ctx, h, activation_);
  return out_.forward(ctx, h);
}

}  // namespace llmtrain::layers
