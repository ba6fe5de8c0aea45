#pragma once
/// Runs a schedule: the only training loop there is.

#include <map>
#include <memory>
#include <span>

#include "lib/autograd/tape.hpp"
#include "lib/parallel/schedule.hpp"

namespace llmtrain::parallel {

/// What the executor drives: the part of a model that one stage computes.
class StageProgram {
 public:
  virtual ~StageProgram() = default;
  /// Context of a micro-batch, without a tape; what it points to lives until end().
  virtual OpCtx begin(int micro_batch) = 0;
  /// Runs the stage. `input` is undefined on the first stage; on the last one the result is the
  /// root of the backward walk.
  virtual Var forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) = 0;
  /// The micro-batch is done on this rank.
  virtual void end(int micro_batch) = 0;
};

/// Runs one rank's actions. A tape per (stage, micro-batch) is born at F and dies after W.
class Executor {
 public:
  Executor(const ScheduleShape& shape, StageProgram& program) : shape_(shape), program_(&program) {}
  void run(std::span<const Action> actions);

 private:
  struct InFlight {
    OpCtx ctx;
    Tape tape;
    Var input, output;
  };
  void forward(const Action& action);
  void input_grad(const Action& action, WeightGrads when);
  void weight_grad(const Action& action);
  void finish(const Action& action);
  InFlight& in_flight(const Action& action);

  ScheduleShape shape_;
  StageProgram* program_;
  std::map<std::pair<int, int>, std::unique_ptr<InFlight>> in_flight_;
};

}  // namespace llmtrain::parallel
