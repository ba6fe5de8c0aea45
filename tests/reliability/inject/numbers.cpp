// Linked into an executable of its own, never into llmtrain: takes the place of Engine::launch_step
// and OptimizerSet::launch_step (--wrap) and spoils a number, once in a process. Its environment:
//
//   NUMBER_SITE   parameter: the first of the rank's second parameter, which every token meets
//                 (the first may be rows of an embedding that no text asks for), before the step
//                 scale: the first of what quantizers remember of magnitudes, before the step
//                 embedding: the first of the embedded values
//                 key: the first of the first head's first key, of the first block here
//                 activation: the first of an MLP's hidden values, of the first block here
//                 local gradient: what that MLP's walk back remembers, so that the gradients that
//                 this rank computes are bad, and its loss is not
//                 loss: the sum of the first micro-batch's losses
//                 gradient: the first of its gradient, summed over ranks, before the update
//                 state, second state: the first of its optimizer states, before the update
//   NUMBER_VALUE  a number, "nan", "inf", or "bit:N", which turns a bit of the bytes there over
//   NUMBER_STEP   in which step
//   NUMBER_RANK   on which rank, or "all"
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "lib/comm/job_place.hpp"
#include "lib/engine/engine.hpp"
#include "lib/ops/ops.hpp"
#include "tests/reliability/inject/phases.hpp"

namespace {

using llmtrain::Tensor;
using llmtrain::engine::Engine;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Engine* running = nullptr;  // while the fault is due
bool done = false;          // a run that goes back comes to the step again
bool spoils_pass = false;   // a value between the operations of the step, which is due

bool is_due(std::int64_t step) {
  const std::string rank = variable("NUMBER_RANK");
  const bool here = rank == "all" || rank == std::to_string(llmtrain::this_launch().place.rank);
  return here && variable("NUMBER_STEP") == std::to_string(step);
}

void spoil(const Tensor& tensor, std::int64_t element = 0) {
  auto* const bytes =
      tensor.view().as<std::byte>() + static_cast<std::size_t>(element) * size_of(tensor.dtype());
  const std::string value = variable("NUMBER_VALUE");
  if (value.starts_with("bit:")) {
    const int bit = std::stoi(value.substr(4));
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    return;
  }
  const double wide = std::strtod(value.c_str(), nullptr);
  const auto number = static_cast<float>(wide);
  if (tensor.dtype() == llmtrain::DType::f64) {
    std::memcpy(bytes, &wide, sizeof wide);
  } else {
    std::memcpy(bytes, &number, sizeof number);
  }
}

/// Once in the step that is due.
bool spoils(const char* site) {
  return spoils_pass && variable("NUMBER_SITE") == site && std::exchange(spoils_pass, false);
}

void spoil_scale(Engine& engine) {
  for (const auto& state : engine.states()) {
    if (state.name.find("#fp8_") != std::string::npos) return spoil(state.tensor);
  }
}

}  // namespace

extern "C" {

// Engine::launch_step(const StepBatch&, std::int64_t, const StepOptions&).
void ENGINE_LAUNCH_REAL(Engine*, const llmtrain::engine::StepBatch&, std::int64_t,
                        const llmtrain::engine::StepOptions&);
void ENGINE_LAUNCH_WRAPPED(Engine* engine, const llmtrain::engine::StepBatch& batch,
                           std::int64_t step, const llmtrain::engine::StepOptions& options) {
  running = !engine->device().is_meta() && !done && is_due(step) ? engine : nullptr;
  done = done || running != nullptr;
  const std::string site = variable("NUMBER_SITE");
  if (running != nullptr && site == "parameter") spoil(engine->parameters().local()[1]->compute());
  if (running != nullptr && site == "scale") spoil_scale(*engine);
  spoils_pass = running != nullptr;
  llmtrain::test::enter_step(engine->device().is_meta() ? 0 : step);
  ENGINE_LAUNCH_REAL(engine, batch, step, options);
  llmtrain::test::enter_step(0);
  running = nullptr;
}

// ops::gated_activation(const OpCtx&, const Var&, kernels::Activation).
llmtrain::Var ACTIVATION_REAL(const llmtrain::OpCtx&, const llmtrain::Var&,
                              llmtrain::kernels::Activation);
llmtrain::Var ACTIVATION_WRAPPED(const llmtrain::OpCtx& ctx, const llmtrain::Var& x,
                                 llmtrain::kernels::Activation activation) {
  llmtrain::Var y = ACTIVATION_REAL(ctx, x, activation);
  if (spoils("activation")) spoil(y.tensor);
  if (spoils("local gradient")) spoil(x.tensor);
  return y;
}

// ops::embedding(const OpCtx&, const Tensor&, const ParameterGroup&).
llmtrain::Var EMBEDDING_REAL(const llmtrain::OpCtx&, const Tensor&,
                             const llmtrain::ParameterGroup&);
llmtrain::Var EMBEDDING_WRAPPED(const llmtrain::OpCtx& ctx, const Tensor& ids,
                                const llmtrain::ParameterGroup& table) {
  llmtrain::Var y = EMBEDDING_REAL(ctx, ids, table);
  if (spoils("embedding")) spoil(y.tensor);
  return y;
}

// ops::rope(const OpCtx&, const Var&, const HeadLayout&, const RopeTables&).
llmtrain::Var ROPE_REAL(const llmtrain::OpCtx&, const llmtrain::Var&,
                        const llmtrain::ops::HeadLayout&, const llmtrain::ops::RopeTables&);
llmtrain::Var ROPE_WRAPPED(const llmtrain::OpCtx& ctx, const llmtrain::Var& qkv,
                           const llmtrain::ops::HeadLayout& heads,
                           const llmtrain::ops::RopeTables& tables) {
  llmtrain::Var y = ROPE_REAL(ctx, qkv, heads, tables);
  if (spoils("key")) spoil(y.tensor, heads.q_cols());
  return y;
}

// ops::loss_head(const OpCtx&, const Var&, const ParameterGroup&, const Tensor&, const Tensor&,
// const LossHeadOptions&).
llmtrain::Var LOSS_REAL(const llmtrain::OpCtx&, const llmtrain::Var&,
                        const llmtrain::ParameterGroup&, const Tensor&, const Tensor&,
                        const llmtrain::ops::LossHeadOptions&);
llmtrain::Var LOSS_WRAPPED(const llmtrain::OpCtx& ctx, const llmtrain::Var& x,
                           const llmtrain::ParameterGroup& weight, const Tensor& targets,
                           const Tensor& loss_sum, const llmtrain::ops::LossHeadOptions& options) {
  llmtrain::Var root = LOSS_REAL(ctx, x, weight, targets, loss_sum, options);
  if (spoils("loss")) spoil(loss_sum);
  return root;
}

// OptimizerSet::launch_step(const KernelCtx&, const View&, const View&).
void OPTIMIZER_LAUNCH_REAL(llmtrain::optim::OptimizerSet*, const llmtrain::kernels::KernelCtx&,
                           const llmtrain::View&, const llmtrain::View&);
void OPTIMIZER_LAUNCH_WRAPPED(llmtrain::optim::OptimizerSet* set,
                              const llmtrain::kernels::KernelCtx& ctx,
                              const llmtrain::View& scalars, const llmtrain::View& loss_sum) {
  if (llmtrain::test::in_step()) llmtrain::test::pass_phase("optimizer");
  spoils_pass = false;
  if (running != nullptr) {
    const std::string site = variable("NUMBER_SITE");
    if (site == "gradient") spoil(running->parameters().local_groups()[1]->step_grad());
    if (site == "state") spoil(set->states()[2].tensor);
    if (site == "second state") spoil(set->states()[3].tensor);
  }
  OPTIMIZER_LAUNCH_REAL(set, ctx, scalars, loss_sum);
}
}
