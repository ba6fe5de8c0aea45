#include "lib/layers/experts.hpp"

#include "lib/ops/expert_parallel.hpp"

namespace llmtrain::layers {

namespace {

// The first of two products is split by outputs (dim 1), the second by inputs (dim 2).
ParameterSpec experts_spec(std::string name, const Shape& shape, double std, int tp_dim) {
  ParameterSpec spec{
      .name = std::move(name), .shape = shape, .init = {Initializer::Kind::normal, std}};
  spec.placement[Axis::tp] = {.split_dim = tp_dim};
  spec.placement.of_experts = true;
  return spec;
}

}  // namespace

Experts::Experts(ParameterStore& store, const std::string& name, const ExpertsConfig& config)
    : activation_(config.activation), router_(config.router) {
  const std::int64_t experts = config.router.experts;
  ParameterSpec gate{.name = name + ".gate.weight",
                     .shape = {experts, config.hidden_size},
                     .init = {Initializer::Kind::normal, config.init_std}};
  // Each rank's outputs are terms of a sum, and so is what their weights learn from them.
  gate.placement[Axis::tp] = {.grad_partial = true};
  gate_ = &store.declare(std::move(gate));
  if (config.correction_bias) {
    router_.bias = &store.declare({.name = name + ".gate.e_score_correction_bias",
                                   .shape = {experts},
                                   .role = ParameterRole::bias,
                                   .trained = false});
  }
  const Shape in{experts, config.intermediate_size, config.hidden_size};
  in_ = &store.declare({experts_spec(name + ".experts.gate_proj.weight", in, config.init_std, 1),
                        experts_spec(name + ".experts.up_proj.weight", in, config.init_std, 1)});
  out_ = &store.declare(experts_spec(name + ".experts.down_proj.weight",
                                     {experts, config.hidden_size, config.intermediate_size},
                                     config.output_init_std, 2));
  if (config.shared_size == 0) return;
  shared_.emplace(store, name + ".shared_experts",
                  MlpConfig{.hidden_size = config.hidden_size,
                            .intermediate_size = config.shared_size,
                            .activation = config.activation,
                            .gated = true,
                            .init_std = config.init_std,
                            .output_init_std = config.output_init_std});
}

void Experts::balance(const kernels::KernelCtx& ctx, const View& decision, double speed) const {
  if (router_.bias == nullptr || !router_.bias->members().front()->is_local()) return;
  kernels::launch(ctx, kernels::BalanceRouter{.choices = router_.counters->choices,
                                              .bias = router_.bias->compute(),
                                              .decision = decision,
                                              .speed = speed});
}

Var Experts::forward(const OpCtx& ctx, const Var& x, bool whole_sequences) const {
  const Var all = ops::copy_to_tp(ctx, x);
  ops::RouterOptions router = router_;
  if (!whole_sequences) router.capacity_factor = 0;
  const ops::Routes routes = ops::route(ctx, all, *gate_, router);
  const ops::SortedRows sorted =
      ops::sort_by_expert(ctx, routes.expert, router.experts, routes.capacity);
  Var weight = ops::sort_weights(ctx, routes.weight, sorted);
  Var h = ops::gather_rows(ctx, all, sorted);
  ops::SharedExchange exchange;
  if (ops::shares_experts(ctx)) {
    exchange = ops::exchange_of(ctx,
                                {.sorted = sorted,
                                 .rows = all.tensor.rows(),
                                 .top_k = router_.rule.top_k,
                                 .needed = router_.counters ? router_.counters->needed : Tensor()},
                                whole_sequences);
    weight = ops::to_experts(ctx, weight, exchange);
    h = ops::to_experts(ctx, h, exchange);
  }
  const ops::SortedRows& here = exchange ? exchange->sorted() : sorted;
  h = ops::expert_up_projection(ctx, h, here, *in_);
  h = ops::gated_activation(ctx, h, activation_);
  h = ops::scale_rows(ctx, h, weight);
  h = ops::expert_linear(ctx, h, here, *out_);
  if (exchange) h = ops::from_experts(ctx, h, exchange);
  h = ops::combine_rows(ctx, h, sorted, all.tensor.rows());
  if (shared_) h = ops::add(ctx, h, shared_->term(ctx, all));
  return ops::reduce_from_tp(ctx, std::move(h));
}

}  // namespace llmtrain::layers
