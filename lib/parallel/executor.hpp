#pragma once
/// Runs a schedule: the only training loop there is, and the evaluation of a pipeline.

#include <map>
#include <memory>
#include <span>
#include <utility>

#include "lib/autograd/tape.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/parallel/messages.hpp"

namespace llmtrain::parallel {

/// What the executor drives: the stages of a model that this rank computes.
class StageProgram {
 public:
  virtual ~StageProgram() = default;
  /// Context of a micro-batch, without a tape; what it points to lives until end().
  virtual OpCtx begin(int micro_batch) = 0;
  /// Runs the stage. `input` is undefined on the first stage; on the last one the result is the
  /// root of the backward walk.
  virtual Var forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) = 0;
  /// A tensor of any content into which a micro-batch's activation between two stages is received,
  /// or the gradient of one.
  virtual Tensor between_stages(int micro_batch) = 0;
  /// The micro-batch is done on this rank, in all its stages.
  virtual void end(int micro_batch) = 0;
};

/// Is told of every action of a rank: when its messages have come, and before its own are sent.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  virtual void began(const Action& action) = 0;
  virtual void ended(const Action& action) = 0;
};

/// A pass for losses alone has no tapes: each F is the end of its stage.
enum class Pass : std::uint8_t { training, evaluation };

/// Runs one rank's actions. A tape per (stage, micro-batch) is born at F and dies after W; the
/// activation that a stage reads is a leaf of its tape.
class Executor {
 public:
  /// `pipeline`: the group of the shape's ranks, in the order of the schedule; null for one rank.
  /// `observer` may be null. All that is given outlives the executor.
  Executor(const ScheduleShape& shape, StageProgram& program, Communicator* pipeline = nullptr,
           ActionObserver* observer = nullptr, Pass pass = Pass::training);

  /// Actions of a schedule for one rank; all that begins must end.
  void run(std::span<const Action> actions);
  /// This rank's actions and the messages around them. Collective over the pipeline. Messages of
  /// one direction between two ranks pass in the order of derive_messages() on both sides, which is
  /// all that a communicator asks of sends and receives.
  void run(const Schedule& schedule, const MessagePlan& plan);

 private:
  using Key = std::pair<int, int>;  // stage, micro-batch
  struct InFlight {
    OpCtx ctx;
    Tape tape;
    Var input, output;
  };
  struct MicroBatch {
    OpCtx ctx;
    int stages_left = 0;
  };
  /// The handle goes first: the tensor is the transport's until then.
  struct Transfer {
    Tensor tensor;
    Handle handle;
  };

  /// Runs it; the tensor that another stage reads, or undefined.
  Tensor perform(const Action& action);
  Tensor dispatch(const Action& action);
  Tensor forward(const Action& action);
  Tensor evaluate(const Action& action);
  /// The context of its micro-batch, which begins with it.
  const OpCtx& context(const Action& action);
  Tensor input_grad(const Action& action, WeightGrads when);
  void finish(const Action& action);
  InFlight& in_flight(const Action& action);
  void require_all_done() const;

  /// Keeps a tensor for the stage of this rank that reads it.
  void hand_on(const Action& maker, Tensor tensor);
  static Key reader(const Action& maker);
  std::map<Key, Tensor>& inbox(ActionKind maker);
  Tensor take(std::map<Key, Tensor>& inbox, const Action& action);

  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == shape_.num_stages - 1; }

  ScheduleShape shape_;
  StageProgram* program_;
  Communicator* pipeline_;
  ActionObserver* observer_;
  Pass pass_;
  std::map<int, MicroBatch> micro_batches_;
  std::map<Key, std::unique_ptr<InFlight>> in_flight_;
  std::map<Key, Tensor> activations_, gradients_;  // by the stage that reads them
  std::map<int, Transfer> sends_, receives_;       // by number of the message
};

}  // namespace llmtrain::parallel
