#include "lib/optim/rule_optimizer.hpp"

#include <algorithm>
#include <utility>

namespace llmtrain::optim {

RuleOptimizer::RuleOptimizer(const Settings& settings)
    : Optimizer(settings.weight_decay), settings_(settings) {}

std::vector<StateSpec> RuleOptimizer::states(const Parameter& parameter) const {
  std::vector<StateSpec> specs;
  for (const std::string_view name : kernels::states_of(settings_.rule)) {
    specs.push_back({name, parameter.master_dtype(), settings_.initial_state});
  }
  return specs;
}

void RuleOptimizer::bind(Device& device, const Mesh&,
                         std::span<const OptimizedParameter> parameters) {
  for (const OptimizedParameter& p : parameters) {
    kernels::RuleTensors& tensors =
        tensors_.emplace_back(kernels::RuleTensors{.to = update_operands(p),
                                                   .states = {},
                                                   .lr_scale = p.lr_scale,
                                                   .weight_decay = p.weight_decay,
                                                   .rounding = state_rounding(p)});
    std::copy(p.states.begin(), p.states.end(), tensors.states.begin());
  }
  if (tensors_.empty()) return;
  table_ = kernels::make_table<kernels::RuleUpdate>(device, std::span(std::as_const(tensors_)),
                                                    "rule table");
}

void RuleOptimizer::update(const kernels::KernelCtx& ctx, const View& decision) const {
  if (tensors_.empty()) return;
  launch(ctx, kernels::RuleUpdate{.tensors = tensors_,
                                  .table = table_,
                                  .decision = decision,
                                  .rule = settings_.rule,
                                  .decay = settings_.decay});
}

}  // namespace llmtrain::optim
