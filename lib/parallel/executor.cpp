#include "lib/parallel/executor.hpp"

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"

namespace llmtrain::parallel {

Executor::Executor(const ScheduleShape& shape, StageProgram& program, Communicator* pipeline,
                   ActionObserver* observer, Pass pass)
    : shape_(shape), program_(&program), pipeline_(pipeline), observer_(observer), pass_(pass) {
  const int ranks = pipeline == nullptr ? 1 : pipeline->size();
  require(ranks == shape.num_ranks, "{} ranks run a schedule for {}", ranks, shape.num_ranks);
}

void Executor::run(std::span<const Action> actions) {
  require(shape_.num_ranks == 1, "a rank of {} runs its actions without messages",
          shape_.num_ranks);
  for (const Action& action : actions) {
    if (Tensor made = perform(action); made.defined()) hand_on(action, std::move(made));
  }
  require_all_done();
}

void Executor::run(const Schedule& schedule, const MessagePlan& plan) {
  const int rank = pipeline_ == nullptr ? 0 : pipeline_->rank();
  const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
  const auto& steps = plan.steps[static_cast<std::size_t>(rank)];
  const auto message = [&](int m) { return plan.messages[static_cast<std::size_t>(m)]; };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (const int m : steps[i].receives) {
      const Action& maker = action_at(schedule, message(m).made_by);
      Tensor room = program_->between_stages(maker.micro_batch);
      Handle handle = pipeline_->recv(room, message(m).from_rank(), to_string(maker));
      receives_.emplace(m, Transfer{std::move(room), std::move(handle)});
    }
    if (steps[i].wait >= 0) {
      auto arrived = receives_.extract(steps[i].wait);
      arrived.mapped().handle.wait();
      hand_on(action_at(schedule, message(steps[i].wait).made_by),
              std::move(arrived.mapped().tensor));
    }
    for (const int m : steps[i].received) sends_.erase(m);
    for (const int m : steps[i].sent) {
      sends_.at(m).handle.wait();
      sends_.erase(m);
    }
    Tensor made = perform(actions[i]);
    if (steps[i].send >= 0) {
      Handle handle =
          pipeline_->send(made, message(steps[i].send).to_rank(), to_string(actions[i]));
      sends_.emplace(steps[i].send, Transfer{std::move(made), std::move(handle)});
    } else if (made.defined()) {
      hand_on(actions[i], std::move(made));
    }
  }
  sends_.clear();
  require_all_done();
}

Tensor Executor::perform(const Action& action) {
  const trace::Scope span(trace::Kind::action, [&] { return to_string(action); });
  if (observer_ != nullptr) observer_->began(action);
  Tensor made = dispatch(action);
  if (observer_ != nullptr) observer_->ended(action);
  return made;
}

Tensor Executor::dispatch(const Action& action) {
  Tensor made;
  switch (action.kind) {
    case ActionKind::forward:
      return pass_ == Pass::training ? forward(action) : evaluate(action);
    case ActionKind::backward:
      made = input_grad(action, WeightGrads::now);
      finish(action);
      return made;
    case ActionKind::input_grad:
      return input_grad(action, WeightGrads::deferred);
    case ActionKind::weight_grad: {
      InFlight& state = in_flight(action);
      state.tape.run_weight_grads(state.ctx);
      finish(action);
      return made;
    }
  }
  return made;
}

const OpCtx& Executor::context(const Action& action) {
  const auto [micro_batch, is_new] = micro_batches_.try_emplace(action.micro_batch);
  if (is_new) {
    micro_batch->second = {program_->begin(action.micro_batch), shape_.stages_per_rank()};
  }
  return micro_batch->second.ctx;
}

Tensor Executor::evaluate(const Action& action) {
  Var input;
  const OpCtx& ctx = context(action);
  if (!is_first(action.stage)) input.tensor = take(activations_, action);
  Tensor made = program_->forward(ctx, action.stage, action.micro_batch, input).tensor;
  input = {};
  finish(action);
  if (is_last(action.stage)) return {};
  return made;
}

Tensor Executor::forward(const Action& action) {
  auto state = std::make_unique<InFlight>();
  state->ctx = context(action);
  state->ctx.tape = &state->tape;
  state->ctx.training = true;
  if (!is_first(action.stage)) state->input = state->tape.leaf(take(activations_, action));
  state->output = program_->forward(state->ctx, action.stage, action.micro_batch, state->input);
  // From here on the operations keep what they need of it.
  state->input.tensor.reset();
  Tensor made;
  if (!is_last(action.stage)) made = std::move(state->output.tensor);
  in_flight_.emplace(Key(action.stage, action.micro_batch), std::move(state));
  return made;
}

Tensor Executor::input_grad(const Action& action, WeightGrads when) {
  InFlight& state = in_flight(action);
  if (is_last(action.stage)) {
    state.tape.seed_root(state.output);
    state.output.tensor.reset();
  } else {
    state.tape.seed(state.output, take(gradients_, action));
  }
  state.tape.backward(state.ctx, when);
  if (is_first(action.stage)) return {};
  Tensor gradient = state.tape.take_gradient(state.input);
  require(gradient.defined(), "{}: its output does not depend on its input", to_string(action));
  return gradient;
}

void Executor::finish(const Action& action) {
  in_flight_.erase({action.stage, action.micro_batch});
  const auto micro_batch = micro_batches_.find(action.micro_batch);
  if (--micro_batch->second.stages_left > 0) return;
  micro_batches_.erase(micro_batch);
  program_->end(action.micro_batch);
}

Executor::InFlight& Executor::in_flight(const Action& action) {
  const auto found = in_flight_.find({action.stage, action.micro_batch});
  require(found != in_flight_.end(), "{} before its forward", to_string(action));
  return *found->second;
}

void Executor::require_all_done() const {
  require(in_flight_.empty() && micro_batches_.empty(), "{} micro-batches were not finished",
          micro_batches_.size());
  require(activations_.empty() && gradients_.empty() && receives_.empty(),
          "{} tensors between stages were not read",
          activations_.size() + gradients_.size() + receives_.size());
}

Executor::Key Executor::reader(const Action& maker) {
  const int stage = maker.kind == ActionKind::forward ? maker.stage + 1 : maker.stage - 1;
  return {stage, maker.micro_batch};
}

std::map<Executor::Key, Tensor>& Executor::inbox(ActionKind maker) {
  return maker == ActionKind::forward ? activations_ : gradients_;
}

void Executor::hand_on(const Action& maker, Tensor tensor) {
  inbox(maker.kind).emplace(reader(maker), std::move(tensor));
}

Tensor Executor::take(std::map<Key, Tensor>& inbox, const Action& action) {
  auto found = inbox.extract(Key(action.stage, action.micro_batch));
  require(!found.empty(), "{} before what it reads", to_string(action));
  return std::move(found.mapped());
}

}  // namespace llmtrain::parallel
