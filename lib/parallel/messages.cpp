#include "lib/parallel/messages.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::vector<Message> messages_of(const Schedule& schedule) {
  const DataFlow flow(schedule);
  std::vector<Message> messages;
  for (int r = 0; r < static_cast<int>(schedule.ranks.size()); ++r) {
    for (int i = 0; i < static_cast<int>(schedule.ranks[at(r)].size()); ++i) {
      const Action& action = schedule.ranks[at(r)][at(i)];
      for (const Position from : flow.inputs(action).all()) {
        require(from.exists(), "nothing makes an input of {}", to_string(action));
        if (from.rank != r) messages.push_back({.made_by = from, .read_by = {r, i}});
      }
    }
  }
  std::ranges::sort(messages, {},
                    [](const Message& m) { return std::tuple(m.made_by.rank, m.made_by.index); });
  return messages;
}

// One before the action, or before the pair whose second it is; the first has none before it.
int action_before(const Schedule& schedule, Position where) {
  const auto& actions = schedule.ranks[at(where.rank)];
  const int before = where.index - 1;
  const bool second = before >= 0 && actions[at(before)].overlaps_next;
  return std::max(0, second ? before - 1 : before);
}

// A rank waits before it runs an action, so whatever it makes in action j tells that it has all
// that its actions up to j read.
void note_received(const std::vector<Message>& messages, std::vector<MessageStep>& steps) {
  std::map<int, std::set<std::pair<int, int>>> open;  // by receiver: action that reads, message
  for (MessageStep& step : steps) {
    if (step.wait >= 0) {
      const Position made_by = messages[at(step.wait)].made_by;
      auto& sent = open[made_by.rank];
      while (!sent.empty() && sent.begin()->first <= made_by.index) {
        step.received.push_back(sent.begin()->second);
        sent.erase(sent.begin());
      }
    }
    if (step.send < 0) continue;
    const Position read_by = messages[at(step.send)].read_by;
    open[read_by.rank].emplace(read_by.index, step.send);
  }
}

}  // namespace

MessagePlan derive_messages(const Schedule& schedule) {
  MessagePlan plan{.messages = messages_of(schedule), .steps = {}};
  for (const auto& actions : schedule.ranks) plan.steps.emplace_back(actions.size());
  // From the last message of each channel to the first: none is posted behind the one after it.
  std::map<std::pair<int, int>, int> next_post;
  for (int m = static_cast<int>(plan.messages.size()) - 1; m >= 0; --m) {
    const Message& message = plan.messages[at(m)];
    auto& reader = plan.steps[at(message.to_rank())];
    plan.steps[at(message.from_rank())][at(message.made_by.index)].send = m;
    reader[at(message.read_by.index)].wait = m;
    const int wanted = action_before(schedule, message.read_by);
    const auto [post, last] =
        next_post.try_emplace({message.from_rank(), message.to_rank()}, wanted);
    post->second = std::min(post->second, wanted);
    reader[at(post->second)].receives.push_back(m);
  }
  for (auto& steps : plan.steps) {
    for (MessageStep& step : steps) std::ranges::sort(step.receives);
    note_received(plan.messages, steps);
  }
  return plan;
}

MessagePlan derive_forward_messages(const Schedule& schedule) {
  MessagePlan plan = derive_messages(schedule);
  std::vector<bool> known(plan.messages.size());
  for (const auto& steps : plan.steps) {
    for (const MessageStep& step : steps) {
      for (const int m : step.received) known[at(m)] = true;
    }
  }
  const Times times = times_without_messages(schedule, DataFlow(schedule));
  for (std::size_t m = 0; m < plan.messages.size(); ++m) {
    if (known[m]) continue;
    const Message& message = plan.messages[m];
    const auto& begins = times.begin[at(message.from_rank())];
    const double read = times.begin[at(message.to_rank())][at(message.read_by.index)];
    const auto first = std::ranges::lower_bound(begins, read);
    if (first == begins.end()) continue;
    auto& steps = plan.steps[at(message.from_rank())];
    steps[static_cast<std::size_t>(first - begins.begin())].sent.push_back(static_cast<int>(m));
  }
  return plan;
}

}  // namespace llmtrain::parallel
