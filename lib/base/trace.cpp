#include "lib/base/trace.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <tuple>

#include "lib/base/trace_limit.hpp"
#include "lib/base/trace_threads.hpp"

namespace llmtrain::trace {

namespace detail {
std::atomic<bool> g_on{false};
}

namespace {

std::mutex g_mutex;  // guards what follows
std::vector<Span> g_spans;
std::size_t g_max_spans = 0;
std::uint64_t g_dropped = 0;
std::uint32_t g_threads = 0;
std::map<std::uint32_t, std::string> g_names;
std::int64_t g_start_ns = 0;

thread_local std::string t_name;  // empty: none

std::int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string_view to_string(Kind kind) {
  constexpr std::array<std::string_view, kNumKinds> kNames{"phase",         "action", "compute",
                                                           "communication", "wait",   "io"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::int64_t detail::now_ns() { return clock_ns(); }

void detail::keep(Kind kind, std::string name, std::int64_t begin_ns) {
  const std::int64_t end_ns = clock_ns();
  const std::lock_guard lock(g_mutex);
  if (!is_on() || begin_ns < g_start_ns) return;
  if (g_spans.size() >= g_max_spans) {
    ++g_dropped;
    return;
  }
  thread_local const std::uint32_t thread = g_threads++;
  if (!t_name.empty()) g_names.try_emplace(thread, t_name);
  g_spans.push_back({kind, thread, std::move(name), begin_ns - g_start_ns, end_ns - g_start_ns});
}

void name_thread(std::string name) { t_name = std::move(name); }

std::map<std::uint32_t, std::string> thread_names() {
  const std::lock_guard lock(g_mutex);
  return g_names;
}

std::uint64_t dropped() {
  const std::lock_guard lock(g_mutex);
  return g_dropped;
}

void start() { start(kMaxSpans); }

void start(std::size_t max_spans) {
  const std::lock_guard lock(g_mutex);
  g_spans.clear();
  g_names.clear();
  g_max_spans = max_spans;
  g_dropped = 0;
  g_start_ns = clock_ns();
  detail::g_on = true;
}

std::vector<Span> stop() {
  std::vector<Span> spans;
  {
    const std::lock_guard lock(g_mutex);
    detail::g_on = false;
    spans.swap(g_spans);
  }
  std::ranges::sort(spans, [](const Span& a, const Span& b) {
    return std::tuple(a.thread, a.begin_ns, -a.end_ns) <
           std::tuple(b.thread, b.begin_ns, -b.end_ns);
  });
  return spans;
}

void for_each_stretch(
    const std::vector<Span>& spans, std::uint32_t thread,
    const std::function<void(std::span<const Span* const> open, std::int64_t ns)>& visit) {
  std::vector<const Span*> open;
  std::int64_t counted_to = 0;
  const auto count_to = [&](std::int64_t ns) {
    if (!open.empty() && ns > counted_to) visit(open, ns - counted_to);
    counted_to = ns;
  };
  const auto close_until = [&](std::int64_t ns) {
    while (!open.empty() && open.back()->end_ns <= ns) {
      count_to(open.back()->end_ns);
      open.pop_back();
    }
  };
  for (const Span& span : spans) {
    if (span.thread != thread) continue;
    close_until(span.begin_ns);
    count_to(span.begin_ns);
    open.push_back(&span);
  }
  if (!open.empty()) close_until(open.front()->end_ns);
}

SelfTimes self_times(const std::vector<Span>& spans, std::uint32_t thread) {
  SelfTimes times;
  for_each_stretch(spans, thread, [&](std::span<const Span* const> open, std::int64_t ns) {
    times.seconds[static_cast<int>(open.back()->kind)] += 1e-9 * static_cast<double>(ns);
  });
  return times;
}

}  // namespace llmtrain::trace
