#include "lib/base/trace.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/trace_limit.hpp"
#include "lib/base/trace_threads.hpp"

namespace llmtrain::trace {

namespace {

void spend(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace

TEST_CASE("spans are kept while somebody looks, and only then; names are made only then") {
  int names = 0;
  const auto name = [&] {
    ++names;
    return std::string("named");
  };
  { const Scope before(Kind::compute, name); }
  CHECK(names == 0);
  const Scope open(Kind::phase, "began before");
  start();
  {
    const Scope outer(Kind::phase, name);
    const Scope inner(Kind::compute, "inner");
    std::thread([] { const Scope other(Kind::io, "other"); }).join();
  }
  const auto ends_late = std::make_unique<Scope>(Kind::io, "ends late");
  const std::vector<Span> spans = stop();
  CHECK(names == 1);
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].thread != spans[2].thread);
  const std::size_t outer = spans[0].name == "named" ? 0 : 1;
  CHECK(spans[outer].name == "named");
  CHECK(spans[outer + 1].name == "inner");
  CHECK(spans[outer].begin_ns <= spans[outer + 1].begin_ns);
  CHECK(spans[outer].end_ns >= spans[outer + 1].end_ns);
  CHECK(stop().empty());
}

TEST_CASE("a thread has the name that it was given, where it has spans") {
  const auto work = [](const char* name) {
    name_thread(name);
    const Scope span(Kind::io, name);
  };
  start();
  { const Scope span(Kind::io, "unnamed"); }
  std::thread([&] { work("writer"); }).join();
  const std::vector<Span> spans = stop();
  std::thread([&] { work("nobody looks"); }).join();
  REQUIRE(spans.size() == 2);
  const Span& named = spans[spans[0].name == "writer" ? 0 : 1];
  CHECK(thread_names() == std::map<std::uint32_t, std::string>{{named.thread, "writer"}});
  start();
  stop();
  CHECK(thread_names().empty());
}

TEST_CASE("no more spans are kept than were asked for, and the others are counted") {
  start(3);
  for (int i = 0; i < 5; ++i) const Scope span(Kind::compute, std::to_string(i));
  CHECK(dropped() == 2);
  const std::vector<Span> spans = stop();
  REQUIRE(spans.size() == 3);
  CHECK(spans[2].name == "2");
  start();
  CHECK(dropped() == 0);
  { const Scope span(Kind::compute, "again"); }
  CHECK(stop().size() == 1);
}

TEST_CASE("each moment counts for the innermost span") {
  const std::vector<Span> spans{{Kind::phase, 0, "step", 0, 100'000'000},
                                {Kind::compute, 0, "a", 10'000'000, 30'000'000},
                                {Kind::wait, 0, "w", 40'000'000, 90'000'000},
                                {Kind::communication, 0, "c", 50'000'000, 70'000'000},
                                {Kind::phase, 0, "next", 100'000'000, 110'000'000},
                                {Kind::io, 1, "other thread", 0, 50'000'000}};
  const SelfTimes times = self_times(spans, 0);
  CHECK(times.of(Kind::compute) == doctest::Approx(0.020));
  CHECK(times.of(Kind::wait) == doctest::Approx(0.030));
  CHECK(times.of(Kind::communication) == doctest::Approx(0.020));
  CHECK(times.of(Kind::phase) == doctest::Approx(0.040));
  CHECK(times.of(Kind::io) == 0);
  CHECK(self_times(spans, 1).of(Kind::io) == doctest::Approx(0.050));
}

TEST_CASE("times are those of the clock") {
  start();
  {
    const Scope outer(Kind::phase, "outer");
    spend(20);
    const Scope inner(Kind::compute, "inner");
    spend(30);
  }
  const std::vector<Span> spans = stop();
  REQUIRE(spans.size() == 2);
  const SelfTimes times = self_times(spans, spans[0].thread);
  CHECK(times.of(Kind::phase) >= 0.020);
  CHECK(times.of(Kind::compute) >= 0.030);
  CHECK(times.of(Kind::compute) + times.of(Kind::phase) ==
        doctest::Approx(1e-9 * static_cast<double>(spans[0].end_ns - spans[0].begin_ns)));
}

}  // namespace llmtrain::trace
