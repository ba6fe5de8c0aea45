#pragma once
/// When each action of a schedule begins and ends, and what that costs: time, bubble, memory,
/// waiting for messages. A discrete-event simulation, exact for the costs that it is given.

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "lib/parallel/messages.hpp"

namespace llmtrain::parallel {

/// What one stage does for one micro-batch.
struct StageWork {
  ActionCosts seconds;
  /// Held from the beginning of F, from the end of I, until the end of W (or B).
  std::uint64_t bytes_after_forward = 0, bytes_after_input_grad = 0;
  /// Of the activation that it hands to the next stage; the gradient that comes back has as many.
  std::uint64_t output_bytes = 0;
};

/// How messages travel from one rank to another: a message occupies its channel for its bytes, and
/// arrives a latency later.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

struct SimulationInput {
  std::vector<StageWork> stages;  // one for each stage
  /// Link from one rank to another, for each class of pairs as the caller sees them (same node,
  /// other node). Empty: messages take no time.
  std::function<Link(int from_rank, int to_rank)> link;
  /// True: messages travel beside the actions. One begins when both sides have posted it and the
  /// one before it has left the channel. False: a rank sends while it does nothing else, until the
  /// message has arrived.
  bool overlap_messages = true;
  /// Seconds of an F and a B that run side by side (Action::overlaps_next), as a fraction of those
  /// that they take one after the other. Without a value they run one after the other.
  std::optional<double> pair_fraction;
};

struct Span {
  double begin = 0, end = 0;

  double seconds() const { return end - begin; }
};

/// One rank's step, from time 0 to the end of the last rank.
struct RankTimeline {
  std::vector<Span> actions;  // as in Schedule::ranks
  double busy_seconds = 0;    // in actions; a pair counts once
  /// Sending, where that is not beside the actions; and waiting for messages whose senders were
  /// done making them.
  double exposed_message_seconds = 0;
  double bubble_fraction = 0;  // of the step, in which the rank runs no action
  std::uint64_t peak_bytes = 0;
};

/// A piece of the chain that is as long as the step: an action, or a message under way (until it
/// arrives, or until its channel is free for the next piece).
struct CriticalPiece {
  Span span;
  /// The action, or without a rank the message.
  Position action;
  int message = -1;
};

struct Simulation {
  double seconds = 0;
  double bubble_fraction = 0;  // mean over the ranks
  std::vector<RankTimeline> ranks;
  std::vector<Span> messages;  // as in MessagePlan::messages, from being under way to arrival
  /// From 0 to the end without a gap.
  std::vector<CriticalPiece> critical_path;
  /// Seconds of the critical path by kind of action; a pair counts as its F and B in proportion.
  std::array<double, 4> critical_action_seconds{};
  double critical_message_seconds = 0;
};

/// InternalError when a rank of the schedule is stuck or the input is not of its shape.
Simulation simulate(const Schedule& schedule, const SimulationInput& input);
/// The same with the messages at hand.
Simulation simulate(const Schedule& schedule, const MessagePlan& messages,
                    const SimulationInput& input);

/// Equal work on all stages: `stage` of the shape's costs.
SimulationInput uniform_work(const Schedule& schedule);

}  // namespace llmtrain::parallel
