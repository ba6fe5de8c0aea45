#include "lib/parallel/simulator.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// What an event waited for: an action, a message, or nothing (the beginning of the step).
struct Cause {
  Position action;
  int message = -1;
};

// The latest of the moments that an event waits for. Of equal ones the first counts.
struct Latest {
  double time = 0;
  Cause cause;

  void wait_for(double moment, Cause by) {
    if (moment > time) *this = {moment, by};
  }
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const MessagePlan& messages, const SimulationInput& input);
  Simulation run();

 private:
  struct RankState {
    double free_at = 0;  // behind the last action and what it sends
    Cause freed_by;
    /// Of each action: when the rank came to it and posted its receives, and why not sooner.
    std::vector<Latest> reached;
    std::vector<Cause> begun_by;
  };
  Span& span(Position where) { return result_.ranks[at(where.rank)].actions[at(where.index)]; }
  RankState& state(int rank) { return ranks_[at(rank)]; }
  const MessageStep& step(Position where) const {
    return messages_.steps[at(where.rank)][at(where.index)];
  }
  double seconds(Position where) const {
    const Action& action = action_at(schedule_, where);
    return input_.stages[at(action.stage)].seconds.of(action.kind);
  }
  /// Whether the action is begun together with the one behind it.
  bool leads_pair(Position where) const {
    return input_.pair_fraction && action_at(schedule_, where).overlaps_next;
  }

  void order_messages();
  void visit(Position where);
  Latest inputs_arrived(std::span<const Position> actions);
  void receive(int message);
  void transmit(int message);
  void send_and_wait(Position where);
  std::uint64_t bytes(const Message& message) const;
  void finish_rank(int rank);
  void trace_critical_path();
  void add_to_path(const CriticalPiece& piece);

  const Schedule& schedule_;
  const MessagePlan& messages_;
  const SimulationInput& input_;
  DataFlow flow_;
  std::vector<RankState> ranks_;
  std::vector<int> previous_;            // of each message: the one before it in its channel, or -1
  std::vector<Position> posted_before_;  // of each message: the reader's action
  std::vector<bool> transmitted_;
  std::vector<double> left_channel_;  // when the next may begin
  std::vector<Cause> sent_by_;
  Simulation result_;
};

Simulator::Simulator(const Schedule& schedule, const MessagePlan& messages,
                     const SimulationInput& input)
    : schedule_(schedule), messages_(messages), input_(input), flow_(schedule) {
  require(input.stages.size() == at(schedule.shape.num_stages), "work of {} stages, not {}",
          input.stages.size(), schedule.shape.num_stages);
  require(messages.steps.size() == schedule.ranks.size(), "messages of {} ranks, not {}",
          messages.steps.size(), schedule.ranks.size());
  for (const auto& actions : schedule.ranks) {
    result_.ranks.emplace_back().actions.resize(actions.size());
    RankState& rank = ranks_.emplace_back();
    rank.reached.resize(actions.size());
    rank.begun_by.resize(actions.size());
  }
  order_messages();
}

void Simulator::order_messages() {
  const std::size_t count = messages_.messages.size();
  result_.messages.resize(count);
  transmitted_.assign(count, false);
  sent_by_.resize(count);
  left_channel_.resize(count);
  posted_before_.resize(count);
  std::map<std::pair<int, int>, int> last;  // of each channel so far
  for (int m = 0; m < static_cast<int>(count); ++m) {
    const Message& message = messages_.messages[at(m)];
    const auto [entry, first] = last.try_emplace({message.from_rank(), message.to_rank()}, m);
    previous_.push_back(first ? -1 : std::exchange(entry->second, m));
  }
  for (int r = 0; r < static_cast<int>(messages_.steps.size()); ++r) {
    for (int i = 0; i < static_cast<int>(messages_.steps[at(r)].size()); ++i) {
      for (const int m : messages_.steps[at(r)][at(i)].receives) posted_before_[at(m)] = {r, i};
    }
  }
}

std::uint64_t Simulator::bytes(const Message& message) const {
  const Action& made_by = action_at(schedule_, message.made_by);
  const bool activation = made_by.kind == ActionKind::forward;
  return input_.stages[at(activation ? made_by.stage : made_by.stage - 1)].output_bytes;
}

// What stands before the message in its channel has been posted by both ranks by now, and goes
// first.
void Simulator::receive(int message) {
  std::vector<int> waiting;
  for (int m = message; m >= 0 && !transmitted_[at(m)]; m = previous_[at(m)]) {
    waiting.push_back(m);
  }
  for (; !waiting.empty(); waiting.pop_back()) transmit(waiting.back());
}

void Simulator::transmit(int m) {
  const Message& message = messages_.messages[at(m)];
  Latest begin{span(message.made_by).end, {.action = message.made_by}};
  if (input_.overlap_messages) {
    const Position post = posted_before_[at(m)];
    const Latest& reached = state(post.rank).reached[at(post.index)];
    begin.wait_for(reached.time, reached.cause);
    if (const int other = previous_[at(m)]; other >= 0) {
      begin.wait_for(left_channel_[at(other)], {.message = other});
    }
  } else {
    const RankState& sender = state(message.from_rank());
    begin.wait_for(sender.free_at, sender.freed_by);
  }
  const Link link = input_.link ? input_.link(message.from_rank(), message.to_rank()) : Link{};
  left_channel_[at(m)] = begin.time + static_cast<double>(bytes(message)) / link.bytes_per_second;
  result_.messages[at(m)] = {begin.time, left_channel_[at(m)] + link.latency_seconds};
  sent_by_[at(m)] = begin.cause;
  transmitted_[at(m)] = true;
}

// Sends while the rank does nothing else.
void Simulator::send_and_wait(Position where) {
  const int message = step(where).send;
  if (message < 0) return;
  transmit(message);
  const Span& sent = result_.messages[at(message)];
  if (sent.seconds() == 0) return;
  result_.ranks[at(where.rank)].exposed_message_seconds += sent.seconds();
  state(where.rank).free_at = sent.end;
  state(where.rank).freed_by = {.message = message};
}

// When the rank is free and the inputs of all these actions, which begin together, are there.
Latest Simulator::inputs_arrived(std::span<const Position> actions) {
  const int rank = actions.front().rank;
  Latest begin{state(rank).free_at, state(rank).freed_by};
  for (const Position where : actions) {
    for (const Position from : flow_.inputs(action_at(schedule_, where)).all()) {
      begin.wait_for(span(from).end, {.action = from});
    }
  }
  const double made = begin.time;
  for (const Position where : actions) {
    const int message = step(where).wait;
    if (message < 0) continue;
    receive(message);
    begin.wait_for(result_.messages[at(message)].end, {.message = message});
  }
  result_.ranks[at(rank)].exposed_message_seconds += begin.time - made;
  return begin;
}

void Simulator::visit(Position where) {
  const Position before{where.rank, where.index - 1};
  if (where.index > 0 && leads_pair(before)) return;  // was run with its F
  std::vector<Position> actions{where};
  double run = seconds(where);
  if (leads_pair(where)) {
    actions.push_back({where.rank, where.index + 1});
    run = *input_.pair_fraction * (run + seconds(actions.back()));
  }
  RankState& rank = state(where.rank);
  for (const Position a : actions) rank.reached[at(a.index)] = {rank.free_at, rank.freed_by};
  const Latest begin = inputs_arrived(actions);
  for (const Position a : actions) {
    span(a) = {begin.time, begin.time + run};
    rank.begun_by[at(a.index)] = begin.cause;
  }
  rank.free_at = begin.time + run;
  rank.freed_by = {.action = actions.back()};
  result_.ranks[at(where.rank)].busy_seconds += run;
  if (input_.overlap_messages) return;
  for (const Position a : actions) send_and_wait(a);
}

void Simulator::finish_rank(int rank) {
  RankTimeline& timeline = result_.ranks[at(rank)];
  timeline.bubble_fraction = result_.seconds > 0 ? 1 - timeline.busy_seconds / result_.seconds : 0;
  std::uint64_t held = 0;
  for (const Action& action : schedule_.ranks[at(rank)]) {
    const StageWork& work = input_.stages[at(action.stage)];
    if (action.kind == ActionKind::forward) held += work.bytes_after_forward;
    timeline.peak_bytes = std::max(timeline.peak_bytes, held);
    if (action.kind == ActionKind::backward) held -= work.bytes_after_forward;
    if (action.kind == ActionKind::input_grad) {
      held = held - work.bytes_after_forward + work.bytes_after_input_grad;
    }
    if (action.kind == ActionKind::weight_grad) held -= work.bytes_after_input_grad;
  }
}

void Simulator::add_to_path(const CriticalPiece& piece) {
  result_.critical_path.push_back(piece);
  if (!piece.action.exists()) {
    result_.critical_message_seconds += piece.span.seconds();
    return;
  }
  const Position first{piece.action.rank, piece.action.index - 1};
  const bool second = piece.action.index > 0 && leads_pair(first);
  const Position f = second ? first : piece.action;
  const Position last{f.rank, leads_pair(f) ? f.index + 1 : f.index};
  const double apart = seconds(f) + (last == f ? 0 : seconds(last));
  for (int i = f.index; i <= last.index; ++i) {
    const Position a{f.rank, i};
    result_.critical_action_seconds[static_cast<std::size_t>(action_at(schedule_, a).kind)] +=
        piece.span.seconds() * seconds(a) / apart;
  }
}

// Back from the action that ends last, each time to what it waited for longest.
void Simulator::trace_critical_path() {
  Cause cause;
  double end = 0;
  for (const RankState& rank : ranks_) {
    if (rank.free_at <= end) continue;
    end = rank.free_at;
    cause = rank.freed_by;
  }
  while (end > 0) {
    const bool action = cause.action.exists();
    require(action || cause.message >= 0, "nothing runs before {} s", end);
    const double begin =
        action ? span(cause.action).begin : result_.messages[at(cause.message)].begin;
    if (begin < end) {
      add_to_path({.span = {begin, end}, .action = cause.action, .message = cause.message});
    }
    cause = action ? state(cause.action.rank).begun_by[at(cause.action.index)]
                   : sent_by_[at(cause.message)];
    end = begin;
  }
  std::ranges::reverse(result_.critical_path);
}

Simulation Simulator::run() {
  const Pairs pairs = input_.pair_fraction ? Pairs::together : Pairs::apart;
  const auto visited = walk(schedule_, flow_, pairs, [this](Position where) { visit(where); });
  for (std::size_t r = 0; r < visited.size(); ++r) {
    if (visited[r] < schedule_.ranks[r].size()) {
      fail("rank {} is stuck before {}", r, to_string(schedule_.ranks[r][visited[r]]));
    }
    result_.seconds = std::max(result_.seconds, ranks_[r].free_at);
  }
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    finish_rank(r);
    result_.bubble_fraction +=
        result_.ranks[at(r)].bubble_fraction / static_cast<double>(ranks_.size());
  }
  trace_critical_path();
  return std::move(result_);
}

}  // namespace

Simulation simulate(const Schedule& schedule, const SimulationInput& input) {
  return simulate(schedule, derive_messages(schedule), input);
}

Simulation simulate(const Schedule& schedule, const MessagePlan& messages,
                    const SimulationInput& input) {
  return Simulator(schedule, messages, input).run();
}

SimulationInput uniform_work(const Schedule& schedule) {
  return {.stages = std::vector<StageWork>(at(schedule.shape.num_stages),
                                           {.seconds = schedule.shape.costs})};
}

}  // namespace llmtrain::parallel
