#include "lib/train/profiler.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llmtrain::train {

namespace {

using trace::Kind;

// Two steps of 100 ms on thread 1, between them a save that waits for others and checks replicas,
// and an evaluation; the files of the save are another thread's.
const std::vector<trace::Span> kSpans{
    {Kind::communication, 0, "begun early", 0, 40'000'000},
    {Kind::phase, 1, "step 4", 0, 100'000'000},
    {Kind::io, 1, "samples", 0, 10'000'000},
    {Kind::action, 1, "F0@0", 10'000'000, 60'000'000},
    {Kind::compute, 1, "matmul", 10'000'000, 50'000'000},
    {Kind::wait, 1, "collectives", 60'000'000, 90'000'000},
    {Kind::communication, 1, "all_reduce \"loss\"", 70'000'000, 80'000'000},
    {Kind::io, 1, "checkpoint", 100'000'000, 300'000'000},
    {Kind::action, 1, "check of replicas", 110'000'000, 130'000'000},
    {Kind::wait, 1, "gather", 150'000'000, 200'000'000},
    {Kind::action, 1, "evaluation", 300'000'000, 340'000'000},
    {Kind::action, 1, "F0@0", 310'000'000, 330'000'000},
    {Kind::compute, 1, "matmul", 310'000'000, 330'000'000},
    {Kind::phase, 1, "step 5", 400'000'000, 500'000'000},
    {Kind::action, 1, "B0@0", 400'000'000, 450'000'000},
    {Kind::compute, 1, "matmul", 400'000'000, 430'000'000},
    {Kind::wait, 1, "gather", 430'000'000, 440'000'000},
    {Kind::action, 1, "W1@0", 450'000'000, 460'000'000},
    {Kind::action, 1, "update", 460'000'000, 500'000'000},
    {Kind::compute, 1, "adamw", 460'000'000, 500'000'000},
    {Kind::io, 7, "write shard-0000-0000.safetensors", 120'000'000, 480'000'000}};

}  // namespace

TEST_CASE("a rank's profile is that of its steps, and of the saves between them") {
  const RankTimes times = times_of(kSpans);
  CHECK(times.step == doctest::Approx(0.100));
  CHECK(times.compute == doctest::Approx(0.055));
  CHECK(times.io == doctest::Approx(0.005));
  CHECK(times.wait == doctest::Approx(0.015));
  CHECK(times.communication == doctest::Approx(0.005));
  CHECK(times.other() == doctest::Approx(0.020));
  CHECK(times.saves == doctest::Approx(0.065));
  CHECK(times.busy() == doctest::Approx(0.145));
}

TEST_CASE("phases have what a rank did in them, and not for what it waited") {
  const RankTimes times = times_of(kSpans);
  CHECK(times.of(StepPhase::forward) == doctest::Approx(0.025));
  CHECK(times.of(StepPhase::backward) == doctest::Approx(0.025));
  CHECK(times.of(StepPhase::update) == doctest::Approx(0.020));
  CHECK(times.of(StepPhase::save) == doctest::Approx(0.075));
  CHECK(times.of(StepPhase::evaluation) == doctest::Approx(0.020));
  CHECK(times.of(StepPhase::other) == doctest::Approx(0.010));
}

TEST_CASE("a step that is made again after a way back is one more to divide by") {
  std::vector<trace::Span> spans;
  for (const char* name : {"step 4", "step 5", "step 4", "step 5"}) {
    const auto begin = static_cast<std::int64_t>(spans.size()) * 100'000'000;
    spans.push_back({Kind::phase, 0, name, begin, begin + 100'000'000});
  }
  CHECK(times_of(spans).step == doctest::Approx(0.100));
  CHECK(times_of(spans).of(StepPhase::other) == doctest::Approx(0.100));
  CHECK(times_of({}).step == 0);
}

TEST_CASE("the table names the rank that the others wait for") {
  const std::vector<RankProfile> ranks{
      {"a", {.step = 0.1, .compute = 0.05, .communication = 0.03, .wait = 0.01}},
      {"a", {.step = 0.1, .compute = 0.09, .communication = 0.005}},
      {"b", {.step = 0.1, .compute = 0.05, .communication = 0.04, .wait = 0.01}}};
  const std::string table = profile_table(ranks);
  CAPTURE(table);
  CHECK(table.find("slowest: rank 1 on a, busy for 95.000 ms per step, saves included, 1.58 times "
                   "the median") != std::string::npos);
  CHECK(profile_table({ranks[0]}).find("slowest") == std::string::npos);
  CHECK(table.find("incomplete") == std::string::npos);
  std::vector<RankProfile> cut = ranks;
  cut[1].times.dropped_spans = 3;
  cut[2].times.dropped_spans = 70;
  CHECK(profile_table(cut).find("incomplete: 70 spans of rank 2 were dropped, all behind its first "
                                "2097152; trace fewer steps") != std::string::npos);
  std::vector<RankProfile> slow_disk = ranks;
  slow_disk[2].times.saves = 0.2;
  CHECK(profile_table(slow_disk).find("slowest: rank 2 on b, busy for 250.000 ms per step") !=
        std::string::npos);
}

TEST_CASE("the tables have a line for each rank") {
  const std::vector<RankProfile> ranks{
      {"n1", {.step = 0.1, .compute = 0.05, .communication = 0.03, .saves = 0.007}},
      {"n2", {.step = 0.1, .phases = {0.011, 0.022, 0.033, 0.044, 0.055, 0.066}}}};
  const std::string table = profile_table(ranks);
  CAPTURE(table);
  CHECK(table.find("     0    100.000     50.000     30.000      0.000      0.000     20.000      "
                   "7.000  n1\n") != std::string::npos);
  CHECK(table.find("  rank    forward   backward     update       save evaluation      other\n") !=
        std::string::npos);
  CHECK(table.find("     1     11.000     22.000     33.000     44.000     55.000     66.000\n") !=
        std::string::npos);
}

TEST_CASE("the events of ranks are one trace") {
  const std::string text = "{\"traceEvents\":[" +
                           trace_events(kSpans, {{7, "checkpoint writer"}}, 0, "n1") + "," +
                           trace_events(kSpans, {}, 3, "n2") + "]}";
  const auto trace = nlohmann::json::parse(text);
  double longest = 0;
  std::size_t spans = 0, names = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      names += event.at("name") == "process_name";
      continue;
    }
    ++spans;
    longest = std::max(longest, event.at("dur").get<double>());
  }
  CHECK(names == 2);
  CHECK(spans == 2 * kSpans.size());
  CHECK(longest == doctest::Approx(360'000));  // microseconds
  const auto thread = [](const char* name) {
    return fmt::format(R"("pid":0,"tid":7,"args":{{"name":"{}"}})", name);
  };
  CHECK(text.find(thread("checkpoint writer")) != std::string::npos);
  CHECK(text.find(thread("thread 7")) == std::string::npos);
  CHECK(text.find(R"("name":"all_reduce \"loss\"","pid":3)") != std::string::npos);
}

}  // namespace llmtrain::train
