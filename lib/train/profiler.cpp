#include "lib/train/profiler.hpp"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace_limit.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;

// The one that makes the steps has the spans of phases.
std::uint32_t step_thread(const std::vector<trace::Span>& spans) {
  const auto phase = std::ranges::find(spans, trace::Kind::phase, &trace::Span::kind);
  return phase == spans.end() ? 0 : phase->thread;
}

// Those that were dropped, on the rank with the most of them.
std::string dropped_text(const std::vector<RankProfile>& ranks) {
  const auto most = std::ranges::max_element(ranks, {}, &RankProfile::dropped_spans);
  if (most == ranks.end() || most->dropped_spans == 0) return "";
  return fmt::format(
      "incomplete: {} spans of rank {} were dropped, all behind its first {}; trace fewer steps "
      "(profiler.num_steps)\n",
      most->dropped_spans, most - ranks.begin(), trace::kMaxSpans);
}

std::string rank_file(int rank) { return fmt::format("rank-{}.json", rank); }

}  // namespace

void ProfilerSection::validate(recipe::Issues& issues) const {
  if (!first_step() && num_steps()) {
    issues.add(num_steps, "does nothing without first_step", "leave it out, or give both");
  }
}

RankProfile profile_of(const std::vector<trace::Span>& spans, std::string host,
                       std::int64_t steps) {
  const std::uint32_t thread = step_thread(spans);
  // What happens between steps is none of them.
  std::vector<trace::Span> inside;
  std::int64_t phase_end = 0;
  for (const trace::Span& span : spans) {
    if (span.thread != thread) continue;
    if (span.kind == trace::Kind::phase) phase_end = std::max(phase_end, span.end_ns);
    if (span.begin_ns < phase_end) inside.push_back(span);
  }
  const trace::SelfTimes self = trace::self_times(inside, thread);
  const auto per_step = [&](double seconds) { return seconds / static_cast<double>(steps); };
  RankProfile profile{.host = std::move(host)};
  for (const trace::Span& span : spans) {
    if (span.thread != thread || span.kind != trace::Kind::phase) continue;
    profile.step += per_step(1e-9 * static_cast<double>(span.end_ns - span.begin_ns));
  }
  profile.compute = per_step(self.of(trace::Kind::compute));
  profile.communication = per_step(self.of(trace::Kind::communication));
  profile.wait = per_step(self.of(trace::Kind::wait));
  profile.io = per_step(self.of(trace::Kind::io));
  return profile;
}

std::string profile_table(const std::vector<RankProfile>& ranks) {
  std::string text = fmt::format("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "rank",
                                 "step ms", "compute", "exchange", "wait", "io", "other", "host");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankProfile& of = ranks[rank];
    text += fmt::format("{:>6} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.3f}  {}\n",
                        rank, 1e3 * of.step, 1e3 * of.compute, 1e3 * of.communication,
                        1e3 * of.wait, 1e3 * of.io, 1e3 * of.other(), of.host);
  }
  text += dropped_text(ranks);
  if (ranks.size() < 2) return text;
  std::vector<double> busy;
  for (const RankProfile& of : ranks) busy.push_back(of.busy());
  const auto slowest = std::ranges::max_element(busy) - busy.begin();
  const double most = busy[static_cast<std::size_t>(slowest)];
  // The lower one of two, which is not the slowest.
  const auto middle = busy.begin() + (std::ssize(busy) - 1) / 2;
  std::ranges::nth_element(busy, middle);
  const double median = *middle;
  return text + fmt::format(
                    "slowest: rank {} on {}, busy for {:.3f} ms of a step, {:.2f} times the "
                    "median\n",
                    slowest, ranks[static_cast<std::size_t>(slowest)].host, 1e3 * most,
                    most / median);
}

std::string trace_events(const std::vector<trace::Span>& spans, int rank, std::string_view host) {
  const auto name_of = [&](const char* what, std::uint32_t thread, const std::string& name) {
    return Json{
        {"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}}
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string events = name_of("process_name", 0, fmt::format("rank {} on {}", rank, host));
  const std::uint32_t steps = step_thread(spans);
  std::set<std::uint32_t> threads;
  for (const trace::Span& span : spans) {
    if (threads.insert(span.thread).second) {
      events +=
          ",\n" + name_of("thread_name", span.thread,
                          span.thread == steps ? "step" : fmt::format("thread {}", span.thread));
    }
    const auto microseconds = [](std::int64_t ns) { return 1e-3 * static_cast<double>(ns); };
    events += fmt::format(
        ",\n{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{"
        ":.3f}}}",
        to_string(span.kind), Json(span.name).dump(-1, ' ', false, Json::error_handler_t::replace),
        rank, span.thread, microseconds(span.begin_ns), microseconds(span.end_ns - span.begin_ns));
  }
  return events;
}

Profiler::Profiler(const ProfilerSection& options, std::filesystem::path run_directory)
    : count_(static_cast<std::int64_t>(options.num_steps().value_or(3).value)),
      directory_(std::move(run_directory) / "profile") {
  if (options.first_step()) first_ = static_cast<std::int64_t>(options.first_step()->value);
}

std::string Profiler::before_step(std::int64_t step, const Peers& peers) {
  if (!first_) return "";
  const bool inside = step >= *first_ && step < *first_ + count_;
  if (inside && !began_) {
    began_ = step;
    // Clocks of machines differ: all begin to count when they meet.
    peers.barrier("begin of a profile");
    trace::start();
  }
  return inside || !began_ ? "" : finish(step - 1, peers);
}

std::string Profiler::finish(std::int64_t last_step, const Peers& peers) {
  if (!began_) {
    const bool never_came = first_ && last_step < *first_ && peers.is_first();
    return never_came ? fmt::format(
                            "profiler.first_step is {}, and this start ended after step {}: "
                            "nothing was traced",
                            *first_, last_step)
                      : "";
  }
  const std::vector<trace::Span> spans = trace::stop();
  const std::uint64_t dropped = trace::dropped();
  const std::int64_t first = *began_;
  began_.reset();
  if (last_step < first) return "";
  const std::string host = plan::machine_facts().host;
  const std::filesystem::path to = directory_ / fmt::format("steps-{:08}-{:08}", first, last_step);
  create_directories_durably(to);
  const int rank = peers.world().place().rank;
  write_file_atomic(to / rank_file(rank), trace_events(spans, rank, host));
  struct Times {
    double step, compute, communication, wait, io;
    std::uint64_t dropped;
  };
  const RankProfile mine = profile_of(spans, host, last_step - first + 1);
  const auto times = peers.of_all(
      Times{mine.step, mine.compute, mine.communication, mine.wait, mine.io, dropped}, "profiles");
  const auto hosts = peers.texts_of_all(host, "profiles");
  if (!peers.is_first()) return "";
  std::vector<RankProfile> ranks;
  std::string events;
  for (std::size_t r = 0; r < times.size(); ++r) {
    const Times& of = times[r];
    ranks.push_back({hosts[r], of.step, of.compute, of.communication, of.wait, of.io, of.dropped});
    const std::filesystem::path file = to / rank_file(static_cast<int>(r));
    events += (r == 0 ? "" : ",\n") + read_file(file);
    std::filesystem::remove(file);
  }
  write_file_atomic(to / "trace.json", "{\"traceEvents\":[\n" + events + "\n]}\n");
  const std::string table = profile_table(ranks);
  write_file_atomic(to / "ranks.txt", table);
  return fmt::format("steps {} to {}, traced in {}\n{}", first, last_step,
                     (to / "trace.json").string(), table.substr(0, table.size() - 1));
}

}  // namespace llmtrain::train
