#pragma once
/// Sends and receives of a schedule, derived from its actions.
///
/// A message is a tensor that one rank makes and another reads: the activation that F hands to the
/// next stage, or the gradient that I or B hands to the stage before. Between stages of one rank
/// nothing is sent. The rules:
///
///  - From each rank to each other leads a channel of its own, which keeps its order. Both sides
///    post its messages in the order in which the sender makes them.
///  - A send is posted right after the action that makes the tensor. It never waits for the
///    receiver; the tensor is the transport's until it is received.
///  - A receive is posted one action before the one that reads the message (or before the pair to
///    which that belongs), so that the message travels while that action runs; sooner only when a
///    later message of the channel is read sooner.
///  - Just before an action runs, the rank waits for its message. If that was made after the other
///    rank had waited for messages from here, these have been received, and what they were sent
///    from is free: so memory is given back at places that the schedule alone decides.
///
/// Whatever blocks inside a channel can thus only wait for a sender that has not come to its
/// action, and a schedule whose actions can be done in some order has no deadlock. One order over
/// both directions of a pair would have none either, but makes a rank post receives behind sends
/// that are not due.

#include <string>
#include <vector>

#include "lib/parallel/schedule_walk.hpp"

namespace llmtrain::parallel {

struct Message {
  Position made_by, read_by;  // actions; of different ranks
  int from_rank() const { return made_by.rank; }
  int to_rank() const { return read_by.rank; }
};

/// What a rank does for messages around one of its actions, in this order: posts the receives,
/// waits for its own message, knows what it sent to be received or waits for that, runs the action,
/// posts the send.
/// Numbers are those of the messages.
struct MessageStep {
  std::vector<int> receives;
  int wait = -1;
  /// Sent before, and received before the awaited message was made. A message of which no later
  /// message tells is in no step.
  std::vector<int> received = {};
  /// Sent before, and awaited now.
  std::vector<int> sent = {};
  int send = -1;
};

struct MessagePlan {
  /// By sender, in the order in which it makes them.
  std::vector<Message> messages;
  /// [rank][index of the action].
  std::vector<std::vector<MessageStep>> steps;
};

/// Every action that a message reads must be in the schedule.
MessagePlan derive_messages(const Schedule& schedule);
/// The same of forwards alone, where no gradient comes back that would tell what was received: a
/// send is awaited before the first action that begins no sooner than its reader when all actions
/// take as long. By then the reader has posted the receive, whatever they take.
MessagePlan derive_forward_messages(const Schedule& schedule);

/// What is wrong with the steps: a message that is not sent, received and awaited once each by the
/// actions that make and read it; one that is taken for received where that is not sure; a channel
/// whose sides are posted in different orders; or a rank that waits for ever when the messages of a
/// channel pass one after the other, each as soon as both sides have posted it. Empty when nothing
/// is wrong.
std::vector<std::string> problems(const Schedule& schedule, const MessagePlan& plan);

}  // namespace llmtrain::parallel
