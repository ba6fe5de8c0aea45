#include <algorithm>
#include <array>
#include <map>

#include "lib/base/require.hpp"
#include "lib/parallel/messages.hpp"

namespace llmtrain::parallel {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string described(const Schedule& schedule, const Message& message) {
  return fmt::format("the message from {} on rank {} to {} on rank {}",
                     to_string(action_at(schedule, message.made_by)), message.from_rank(),
                     to_string(action_at(schedule, message.read_by)), message.to_rank());
}

using Order = std::vector<int>;  // numbers of messages
using Channel = std::pair<int, int>;

Channel channel_of(const Message& message) { return {message.from_rank(), message.to_rank()}; }

class MessageCheck {
 public:
  MessageCheck(const Schedule& schedule, const MessagePlan& plan)
      : schedule_(schedule), plan_(plan) {}

  std::vector<std::string> run() {
    check_counts();
    if (found_.empty()) check_received();
    if (found_.empty()) check_orders();
    if (found_.empty()) check_progress();
    return std::move(found_);
  }

 private:
  void check_counts();
  void count_step(Position where, std::vector<std::array<int, 3>>& seen);
  void check_received();
  void check_orders();
  void check_progress();

  const Schedule& schedule_;
  const MessagePlan& plan_;
  std::map<Channel, Order> sends_, receives_;
  std::vector<std::string> found_;
};

void MessageCheck::count_step(Position where, std::vector<std::array<int, 3>>& seen) {
  const MessageStep& step = plan_.steps[at(where.rank)][at(where.index)];
  for (const int m : step.receives) {
    const Message& message = plan_.messages[at(m)];
    seen[at(m)][0] += message.to_rank() == where.rank && where.index <= message.read_by.index;
    receives_[channel_of(message)].push_back(m);
  }
  if (step.wait >= 0) seen[at(step.wait)][1] += plan_.messages[at(step.wait)].read_by == where;
  if (step.send >= 0) {
    seen[at(step.send)][2] += plan_.messages[at(step.send)].made_by == where;
    sends_[channel_of(plan_.messages[at(step.send)])].push_back(step.send);
  }
}

void MessageCheck::check_counts() {
  std::vector<std::array<int, 3>> seen(plan_.messages.size());  // receives, waits, sends
  for (int r = 0; r < static_cast<int>(plan_.steps.size()); ++r) {
    for (int i = 0; i < static_cast<int>(plan_.steps[at(r)].size()); ++i) count_step({r, i}, seen);
  }
  for (std::size_t m = 0; m < seen.size(); ++m) {
    const auto [receives, waits, sends] = seen[m];
    if (receives != 1 || waits != 1 || sends != 1) {
      found_.push_back(
          fmt::format("{} is posted {} times by its reader in time, awaited {} times "
                      "and sent {} times",
                      described(schedule_, plan_.messages[m]), receives, waits, sends));
    }
  }
}

void MessageCheck::check_received() {
  std::vector<int> times(plan_.messages.size());
  for (int r = 0; r < static_cast<int>(plan_.steps.size()); ++r) {
    for (int i = 0; i < static_cast<int>(plan_.steps[at(r)].size()); ++i) {
      const MessageStep& step = plan_.steps[at(r)][at(i)];
      for (const int m : step.sent) {
        const Message& message = plan_.messages[at(m)];
        if (message.from_rank() == r && message.made_by.index < i) continue;
        found_.push_back(
            fmt::format("{} is awaited before it is sent", described(schedule_, message)));
      }
      for (const int m : step.received) {
        const Message& message = plan_.messages[at(m)];
        const bool sent = message.from_rank() == r && message.made_by.index < i;
        const Position told_by =
            step.wait >= 0 ? plan_.messages[at(step.wait)].made_by : Position{};
        const bool told =
            told_by.rank == message.to_rank() && told_by.index >= message.read_by.index;
        if (sent && told && ++times[at(m)] == 1) continue;
        found_.push_back(fmt::format("{} is taken for received before {} on rank {}",
                                     described(schedule_, message),
                                     to_string(action_at(schedule_, {r, i})), r));
      }
    }
  }
}

void MessageCheck::check_orders() {
  for (const auto& [channel, sends] : sends_) {
    const auto [sent, received] = std::ranges::mismatch(sends, receives_[channel]);
    if (sent == sends.end()) continue;
    found_.push_back(fmt::format("where rank {} sends {}, rank {} receives {}", channel.first,
                                 described(schedule_, plan_.messages[at(*sent)]), channel.second,
                                 described(schedule_, plan_.messages[at(*received)])));
  }
}

// Runs the steps. With one order on both sides, the messages that have passed a channel are as many
// as both sides have posted.
void MessageCheck::check_progress() {
  std::vector<std::size_t> place(plan_.messages.size());
  for (const auto& [channel, order] : sends_) {
    for (std::size_t k = 0; k < order.size(); ++k) place[at(order[k])] = k;
  }
  std::map<Channel, std::size_t> sent, received;
  const auto channel = [&](int m) { return channel_of(plan_.messages[at(m)]); };
  const auto passed = [&](int m) {
    return place[at(m)] < std::min(sent[channel(m)], received[channel(m)]);
  };
  std::vector<std::size_t> next(plan_.steps.size()), receives_posted(plan_.steps.size());
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < plan_.steps.size(); ++r) {
      for (; next[r] < plan_.steps[r].size(); ++next[r], receives_posted[r] = 0) {
        const MessageStep& step = plan_.steps[r][next[r]];
        while (receives_posted[r] < step.receives.size()) {
          ++received[channel(step.receives[receives_posted[r]++])];
          moved = true;
        }
        if (step.wait >= 0 && !passed(step.wait)) break;
        if (!std::ranges::all_of(step.sent, passed)) break;
        if (step.send >= 0) ++sent[channel(step.send)];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < plan_.steps.size(); ++r) {
    if (next[r] == plan_.steps[r].size()) continue;
    const MessageStep& step = plan_.steps[r][next[r]];
    const bool has_come = step.wait < 0 || passed(step.wait);
    const int m = has_come ? *std::ranges::find_if_not(step.sent, passed) : step.wait;
    found_.push_back(fmt::format("rank {} waits for ever for {}", r,
                                 described(schedule_, plan_.messages[at(m)])));
  }
}

}  // namespace

std::vector<std::string> problems(const Schedule& schedule, const MessagePlan& plan) {
  return MessageCheck(schedule, plan).run();
}

}  // namespace llmtrain::parallel
