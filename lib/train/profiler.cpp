#include "lib/train/profiler.hpp"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace_limit.hpp"
#include "lib/base/trace_threads.hpp"
#include "lib/base/units.hpp"
#include "lib/parallel/schedule.hpp"
#include "lib/plan/machine.hpp"

namespace llmtrain::train {

namespace {

using Json = nlohmann::ordered_json;

// The one that makes the steps has the spans of phases.
std::uint32_t step_thread(const std::vector<trace::Span>& spans) {
  const auto phase = std::ranges::find(spans, trace::Kind::phase, &trace::Span::kind);
  return phase == spans.end() ? 0 : phase->thread;
}

double seconds(std::int64_t ns) { return 1e-9 * static_cast<double>(ns); }

// Of what begins with this span, whatever is in it.
std::optional<StepPhase> phase_of(const trace::Span& span) {
  if (span.kind == trace::Kind::io && span.name == "checkpoint") return StepPhase::save;
  if (span.kind != trace::Kind::action) return std::nullopt;
  if (span.name == "evaluation") return StepPhase::evaluation;
  if (span.name == "update") return StepPhase::update;
  // As to_string() has an action of a schedule: its letter, then its micro-batch.
  if (span.name.size() < 2 || span.name[1] < '0' || span.name[1] > '9') return std::nullopt;
  if (span.name[0] == parallel::letter(parallel::ActionKind::forward)) return StepPhase::forward;
  return StepPhase::backward;
}

std::array<double, kNumStepPhases> phase_times(const std::vector<trace::Span>& spans,
                                               std::uint32_t thread) {
  std::array<double, kNumStepPhases> times{};
  const auto add = [&](std::span<const trace::Span* const> open, std::int64_t ns) {
    const trace::Kind kind = open.back()->kind;
    if (kind == trace::Kind::wait || kind == trace::Kind::communication) return;
    StepPhase phase = StepPhase::other;
    for (const trace::Span* const span : open) {
      const std::optional<StepPhase> found = phase_of(*span);
      if (!found) continue;
      phase = *found;
      break;
    }
    times.at(static_cast<std::size_t>(phase)) += seconds(ns);
  };
  trace::for_each_stretch(spans, thread, add);
  return times;
}

std::string phase_table(const std::vector<RankProfile>& ranks) {
  std::string text = "ms per step by phase, without exchanges and waiting\n";
  text += fmt::format("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "rank", "forward",
                      "backward", "update", "save", "evaluation", "other");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += fmt::format("{:>6}", rank);
    for (const double seconds : ranks[rank].times.phases) {
      text += fmt::format(" {:>10.3f}", 1e3 * seconds);
    }
    text += "\n";
  }
  return text;
}

// Those that were dropped, on the rank with the most of them.
std::string dropped_text(const std::vector<RankProfile>& ranks) {
  const auto dropped = [](const RankProfile& of) { return of.times.dropped_spans; };
  const auto most = std::ranges::max_element(ranks, {}, dropped);
  if (most == ranks.end() || dropped(*most) == 0) return "";
  return fmt::format(
      "incomplete: {} spans of rank {} were dropped, all behind its first {}; trace fewer steps "
      "(profiler.num_steps)\n",
      dropped(*most), most - ranks.begin(), trace::kMaxSpans);
}

// The one that the others wait for.
std::string slowest_text(const std::vector<RankProfile>& ranks) {
  if (ranks.size() < 2) return "";
  std::vector<double> busy;
  for (const RankProfile& of : ranks) busy.push_back(of.times.busy());
  const auto slowest = std::ranges::max_element(busy) - busy.begin();
  const double most = busy[static_cast<std::size_t>(slowest)];
  // The lower one of two, which is not the slowest.
  const auto middle = busy.begin() + (std::ssize(busy) - 1) / 2;
  std::ranges::nth_element(busy, middle);
  const double median = *middle;
  return fmt::format(
      "slowest: rank {} on {}, busy for {:.3f} ms per step, saves included, {:.2f} times the "
      "median\n",
      slowest, ranks[static_cast<std::size_t>(slowest)].host, 1e3 * most, most / median);
}

std::string rank_file(int rank) { return fmt::format("rank-{}.json", rank); }

// Why the disk does not take what a window has seen, or "": a run goes on without it.
template <class Write>
std::string problem_of(const Write& write) {
  try {
    write();
    return "";
  } catch (const StorageError& error) {
    return error.what();
  }
}

// Puts what ranks have written into one file.
void join_traces(const std::filesystem::path& to, std::size_t ranks) {
  const std::filesystem::path unfinished = to / "trace.json.tmp";
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);  // of an earlier start
  File trace = File::create_new(unfinished);
  trace.write("{\"traceEvents\":[\n");
  for (std::size_t r = 0; r < ranks; ++r) {  // one in memory at a time
    const std::filesystem::path file = to / rank_file(static_cast<int>(r));
    if (r > 0) trace.write(",\n");
    trace.write(read_file(file));
    std::filesystem::remove(file, ignored);
  }
  trace.write("\n]}\n");
  trace.sync();
  trace.close();
  rename_path(unfinished, to / "trace.json");
}

}  // namespace

void ProfilerSection::validate(recipe::Issues& issues) const {
  if (!first_step() && num_steps()) {
    issues.add(num_steps, "does nothing without first_step", "leave it out, or give both");
  }
}

RankTimes times_of(const std::vector<trace::Span>& spans) {
  const std::uint32_t thread = step_thread(spans);
  RankTimes times;
  std::vector<trace::Span> inside, between;
  std::int64_t phase_end = 0;
  int steps = 0;
  for (const trace::Span& span : spans) {
    if (span.thread != thread) continue;
    if (span.kind == trace::Kind::phase) {
      ++steps;
      phase_end = std::max(phase_end, span.end_ns);
      times.step += seconds(span.end_ns - span.begin_ns);
    }
    (span.begin_ns < phase_end ? inside : between).push_back(span);
  }
  const trace::SelfTimes self = trace::self_times(inside, thread);
  times.compute = self.of(trace::Kind::compute);
  times.communication = self.of(trace::Kind::communication);
  times.wait = self.of(trace::Kind::wait);
  times.io = self.of(trace::Kind::io);
  times.saves = trace::self_times(between, thread).of(trace::Kind::io);
  times.phases = phase_times(spans, thread);
  for (double* const sum :
       {&times.step, &times.compute, &times.communication, &times.wait, &times.io, &times.saves}) {
    *sum /= std::max(steps, 1);
  }
  for (double& sum : times.phases) sum /= std::max(steps, 1);
  return times;
}

std::string profile_table(const std::vector<RankProfile>& ranks) {
  std::string text =
      fmt::format("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "rank", "step ms",
                  "compute", "exchange", "wait", "io", "other", "saves", "host");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankTimes& of = ranks[rank].times;
    text += fmt::format("{:>6}", rank);
    for (const double seconds :
         {of.step, of.compute, of.communication, of.wait, of.io, of.other(), of.saves}) {
      text += fmt::format(" {:>10.3f}", 1e3 * seconds);
    }
    text += fmt::format("  {}\n", ranks[rank].host);
  }
  return text + phase_table(ranks) + dropped_text(ranks) + slowest_text(ranks);
}

std::string trace_events(const std::vector<trace::Span>& spans,
                         const std::map<std::uint32_t, std::string>& threads, int rank,
                         std::string_view host) {
  const auto name_of = [&](const char* what, std::uint32_t thread, const std::string& name) {
    return Json{
        {"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}}
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string events = name_of("process_name", 0, fmt::format("rank {} on {}", rank, host));
  const std::uint32_t steps = step_thread(spans);
  const auto thread_name = [&](std::uint32_t thread) {
    if (thread == steps) return std::string("step");
    const auto found = threads.find(thread);
    return found == threads.end() ? fmt::format("thread {}", thread) : found->second;
  };
  std::set<std::uint32_t> seen;
  for (const trace::Span& span : spans) {
    if (seen.insert(span.thread).second) {
      events += ",\n" + name_of("thread_name", span.thread, thread_name(span.thread));
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
  const int rank = peers.world().place().rank;
  std::string problem = problem_of([&] {
    create_directories_durably(to);
    write_file_atomic(to / rank_file(rank), trace_events(spans, trace::thread_names(), rank, host));
  });
  RankTimes mine = times_of(spans);
  mine.dropped_spans = dropped;
  const std::vector<RankTimes> times = peers.of_all(mine, "profiles");
  const auto hosts = peers.texts_of_all(host, "profiles");
  const auto problems = peers.texts_of_all(problem, "profiles");
  if (!peers.is_first()) {
    peers.wait_for_first("profiles");
    return "";
  }
  std::vector<RankProfile> ranks;
  for (std::size_t r = 0; r < times.size(); ++r) ranks.push_back({hosts[r], times[r]});
  const std::string table = profile_table(ranks);
  for (const std::string& of_rank : problems) problem = problem.empty() ? of_rank : problem;
  if (problem.empty()) {
    problem = problem_of([&] {
      join_traces(to, times.size());
      write_file_atomic(to / "ranks.txt", table);
    });
  }
  peers.wait_for_first("profiles");
  if (!problem.empty()) {
    return fmt::format("steps {} to {} have no trace: {}\n{}", first, last_step, problem,
                       table.substr(0, table.size() - 1));
  }
  return fmt::format("steps {} to {}, traced in {}\n{}", first, last_step,
                     (to / "trace.json").string(), table.substr(0, table.size() - 1));
}

}  // namespace llmtrain::train
