#include "lib/parallel/timeline.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

struct Run {
  Schedule schedule;
  SimulationInput input;
  MessagePlan messages;
  Simulation simulation;

  explicit Run(std::string_view name, const ScheduleShape& shape, double latency = 0)
      : schedule(find_schedule(name).make(shape)), input(uniform_work(schedule)) {
    if (latency > 0) input.link = [=](int, int) { return Link{.latency_seconds = latency}; };
    messages = derive_messages(schedule);
    simulation = simulate(schedule, messages, input);
  }
  std::string text(int max_columns = 0) const {
    return timeline_text(schedule, simulation, max_columns);
  }
};

int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("a line per rank, actions as long as they take, idle dotted") {
  CHECK(Run("1f1b", {3, 3, 4}).text() ==
        "rank 0 |F0 F1 F2 ............B0    F3 B1    ...B2    ...B3    |\n"
        "rank 1 |...F0 F1 ......B0    F2 B1    F3 B2    ...B3    ......|\n"
        "rank 2 |......F0 B0    F1 B1    F2 B2    F3 B3    ............|\n");
}

TEST_CASE("small letters are the second stage of a rank") {
  CHECK(Run("zbv", {2, 4, 3}).text() ==
        "rank 0 |F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2 ...|\n"
        "rank 1 |...F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 I1 i2 I2 W1 w2 W2 |\n");
}

TEST_CASE("numbers of two digits get room, and none of an action that has no room") {
  const std::string wide = Run("gpipe", {1, 1, 12}).text();
  CHECK(wide.starts_with("rank 0 |F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F10 F11 B0      B1"));
  const std::string narrow = Run("gpipe", {1, 1, 12}).text(36);
  CHECK(narrow == "rank 0 |FFFFFFFFFFFFB0B1B2B3B4B5B6B7B8B9B B |\n");
}

TEST_CASE("16 ranks with 64 micro-batches are 16 lines of equal width") {
  const Run run("zb_h1", {16, 16, 64});
  for (const int columns : {0, 200}) {
    const std::string text = run.text(columns);
    CHECK(count(text, "\n") == 16);
    const std::size_t width = text.find('\n') + 1;
    CHECK(text.size() == 16 * width);
    CHECK(width == std::string("rank 15 ||\n").size() + (columns > 0 ? 200 : 4 * (3 * 64 + 15)));
    CHECK(text.substr(0, width).starts_with("rank 0  |F"));
  }
}

TEST_CASE("of a pair that runs side by side each gets half") {
  Run run("dualpipev", {1, 2, 3});
  run.input.pair_fraction = 1;
  run.simulation = simulate(run.schedule, run.messages, run.input);
  CHECK(run.text() == "rank 0 |F0 f0 F1 b0    f1   B0  F2   b1  f2   B1  b2    I2 W2 |\n");
}

TEST_CASE("the trace is one JSON object with all actions and messages") {
  const Run run("zbv", {2, 4, 2}, 0.5);
  const std::string text = timeline_trace(run.schedule, run.messages, run.simulation);
  const auto trace = nlohmann::json::parse(text);
  int actions = 0, messages = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    (event.at("cat") == "message" ? messages : actions) += 1;
    CHECK(event.at("dur").get<double>() >= 5e5);
  }
  CHECK(actions == 4 * 2 * 3);
  CHECK(messages == 4 * 2);
  CHECK(count(text, "\"thread_name\"") == 2 + 2);
  CHECK(text.find(R"({"name":"F0@0","cat":"forward","ph":"X","pid":1,"tid":0,"ts":0.000,)"
                  R"("dur":1000000.000,"args":{"stage":0,"micro_batch":0}})") != std::string::npos);
  CHECK(text == timeline_trace(run.schedule, run.messages, run.simulation));
}

TEST_CASE("the picture has a bar with its story for each action, a legend and an axis") {
  const Run run("zb_h1", {2, 2, 3});
  const std::string svg = timeline_svg(run.schedule, run.simulation);
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count(svg, "<title>") == 2 * 3 * 3);
  CHECK(count(svg, "<title>weight gradient of micro-batch 2 on stage 1, 9.0 s to 10.0 s") == 1);
  CHECK(count(svg, "backward") == 0);  // nothing in the legend that is not in the picture
  CHECK(count(svg, ">rank ") == 2);
  CHECK(count(svg, "http") == 1);  // needs nothing from elsewhere
  CHECK(svg == timeline_svg(run.schedule, run.simulation));
  CHECK(count(svg, "light:") == 0);
  const Run v("zbv", {2, 4, 3});
  CHECK(count(timeline_svg(v.schedule, v.simulation), "light:") == 1);
}

}  // namespace llmtrain::parallel
