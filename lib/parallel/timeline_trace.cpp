#include <set>

#include "lib/base/require.hpp"
#include "lib/parallel/timeline.hpp"
#include "lib/parallel/timeline_cells.hpp"

namespace llmtrain::parallel {

namespace {

enum Process : int { kRanks = 1, kMessages = 2 };

// Times of the format are in microseconds; three places keep nanoseconds.
std::string slice(const std::string& name, std::string_view category, Process process, int thread,
                  const Span& span, const std::string& args) {
  return fmt::format(
      "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":"
      "{:.3f},\"args\":{{{}}}}}",
      name, category, static_cast<int>(process), thread, 1e6 * span.begin, 1e6 * span.seconds(),
      args);
}

std::string named(std::string_view what, Process process, int thread, const std::string& name) {
  return fmt::format(
      "{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}", what,
      static_cast<int>(process), thread, name);
}

}  // namespace

std::string timeline_trace(const Schedule& schedule, const MessagePlan& messages,
                           const Simulation& simulation) {
  std::vector<std::string> events{named("process_name", kRanks, 0, "ranks")};
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    events.push_back(named("thread_name", kRanks, static_cast<int>(r), fmt::format("rank {}", r)));
  }
  for (const TimelineCell& cell : timeline_cells(schedule, simulation)) {
    events.push_back(slice(to_string(cell.action), words(cell.action.kind), kRanks, cell.row,
                           cell.span,
                           fmt::format("\"stage\":{},\"micro_batch\":{}", cell.action.stage,
                                       cell.action.micro_batch)));
  }
  std::set<int> directions;
  for (std::size_t m = 0; m < messages.messages.size(); ++m) {
    const Message& message = messages.messages[m];
    if (simulation.messages[m].seconds() == 0) continue;
    const int direction = message.from_rank() * schedule.shape.num_ranks + message.to_rank();
    if (directions.empty()) {
      events.push_back(named("process_name", kMessages, 0, "messages"));
    }
    if (directions.insert(direction).second) {
      events.push_back(named("thread_name", kMessages, direction,
                             fmt::format("rank {} to {}", message.from_rank(), message.to_rank())));
    }
    events.push_back(slice(to_string(action_at(schedule, message.made_by)), "message", kMessages,
                           direction, simulation.messages[m], ""));
  }
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
                     fmt::join(events, ",\n"));
}

}  // namespace llmtrain::parallel
