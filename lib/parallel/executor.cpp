#include "lib/parallel/executor.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

void Executor::run(std::span<const Action> actions) {
  require(shape_.num_stages == 1, "this executor has no links between {} stages",
          shape_.num_stages);
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::forward:
        forward(action);
        break;
      case ActionKind::backward:
        input_grad(action, WeightGrads::now);
        finish(action);
        break;
      case ActionKind::input_grad:
        input_grad(action, WeightGrads::deferred);
        break;
      case ActionKind::weight_grad:
        weight_grad(action);
        finish(action);
        break;
    }
  }
  require(in_flight_.empty(), "{} micro-batches were not finished", in_flight_.size());
}

void Executor::forward(const Action& action) {
  auto state = std::make_unique<InFlight>();
  state->ctx = program_->begin(action.micro_batch);
  state->ctx.tape = &state->tape;
  state->ctx.training = true;
  state->output = program_->forward(state->ctx, action.stage, action.micro_batch, state->input);
  in_flight_.emplace(std::pair(action.stage, action.micro_batch), std::move(state));
}

void Executor::input_grad(const Action& action, WeightGrads when) {
  InFlight& state = in_flight(action);
  state.tape.seed_root(state.output);
  state.output.tensor.reset();
  state.tape.backward(state.ctx, when);
}

void Executor::weight_grad(const Action& action) {
  InFlight& state = in_flight(action);
  state.tape.run_weight_grads(state.ctx);
}

void Executor::finish(const Action& action) {
  in_flight_.erase({action.stage, action.micro_batch});
  program_->end(action.micro_batch);
}

Executor::InFlight& Executor::in_flight(const Action& action) {
  const auto found = in_flight_.find({action.stage, action.micro_batch});
  require(found != in_flight_.end(), "{} before its forward", to_string(action));
  return *found->second;
}

}  // namespace llmtrain::parallel
