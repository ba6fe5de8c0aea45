#include "lib/optim/matrices_and_others.hpp"

#include <utility>

namespace llmtrain::optim {

namespace {

bool is_matrix(const Parameter& parameter) { return parameter.role() == ParameterRole::matrix; }

}  // namespace

MatricesAndOthers::MatricesAndOthers(std::unique_ptr<Optimizer> others)
    : Optimizer(others->weight_decay()), others_(std::move(others)) {}

std::vector<StateSpec> MatricesAndOthers::states(const Parameter& parameter) const {
  return is_matrix(parameter) ? matrix_states(parameter) : others_->states(parameter);
}

std::int64_t MatricesAndOthers::indivisible(const Parameter& parameter) const {
  return is_matrix(parameter) ? 0 : others_->indivisible(parameter);
}

std::int64_t MatricesAndOthers::divisible(const Parameter& parameter) const {
  return is_matrix(parameter) ? 0 : others_->divisible(parameter);
}

void MatricesAndOthers::bind(Device& device, const Mesh& mesh,
                             std::span<const OptimizedParameter> parameters) {
  mesh_ = &mesh;
  for (const OptimizedParameter& p : parameters) {
    (is_matrix(*p.parameter) ? matrices_ : not_matrices_).push_back(p);
  }
  others_->bind(device, mesh, not_matrices_);
}

void MatricesAndOthers::update(const kernels::KernelCtx& ctx, const View& decision) const {
  for (const OptimizedParameter& p : matrices_) update_matrices(ctx, p, decision);
  others_->update(ctx, decision);
}

void MatricesAndOthers::step_along(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                                   const View& direction, const View& decision, double factor,
                                   kernels::WeightDecay decay) {
  kernels::UpdateOperands along = update_operands(p);
  along.gradient = direction;
  launch(ctx, kernels::StepUpdate{.to = along,
                                  .decision = decision,
                                  .lr_scale = p.lr_scale,
                                  .weight_decay = p.weight_decay,
                                  .factor = factor,
                                  .decay_last = decay == kernels::WeightDecay::after_step});
}

}  // namespace llmtrain::optim
