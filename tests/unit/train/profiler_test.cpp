#include "lib/train/profiler.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace llmtrain::train {

namespace {

using trace::Kind;

// Two steps of 100 ms on thread 1, with a save between them that belongs to neither.
const std::vector<trace::Span> kSpans{
    {Kind::communication, 0, "begun early", 0, 40'000'000},
    {Kind::phase, 1, "step 4", 0, 100'000'000},
    {Kind::io, 1, "samples", 0, 10'000'000},
    {Kind::action, 1, "F0", 10'000'000, 60'000'000},
    {Kind::compute, 1, "matmul", 10'000'000, 50'000'000},
    {Kind::wait, 1, "collectives", 60'000'000, 90'000'000},
    {Kind::communication, 1, "all_reduce \"loss\"", 70'000'000, 80'000'000},
    {Kind::io, 1, "checkpoint", 100'000'000, 300'000'000},
    {Kind::phase, 1, "step 5", 300'000'000, 400'000'000},
    {Kind::compute, 1, "matmul", 300'000'000, 400'000'000}};

}  // namespace

TEST_CASE("a rank's profile is that of its steps") {
  const RankProfile profile = profile_of(kSpans, "n1", 2);
  CHECK(profile.host == "n1");
  CHECK(profile.step == doctest::Approx(0.100));
  CHECK(profile.compute == doctest::Approx(0.070));
  CHECK(profile.io == doctest::Approx(0.005));
  CHECK(profile.wait == doctest::Approx(0.010));
  CHECK(profile.communication == doctest::Approx(0.005));
  CHECK(profile.other() == doctest::Approx(0.010));
  CHECK(profile.busy() == doctest::Approx(0.085));
}

TEST_CASE("the table names the rank that the others wait for") {
  const std::vector<RankProfile> ranks{{"a", 0.1, 0.05, 0.03, 0.01, 0.0},
                                       {"a", 0.1, 0.09, 0.005, 0.0, 0.0},
                                       {"b", 0.1, 0.05, 0.04, 0.01, 0.0}};
  const std::string table = profile_table(ranks);
  CAPTURE(table);
  CHECK(table.find("slowest: rank 1 on a, busy for 95.000 ms of a step, 1.58 times the median") !=
        std::string::npos);
  CHECK(profile_table({ranks[0]}).find("slowest") == std::string::npos);
  CHECK(table.find("incomplete") == std::string::npos);
  std::vector<RankProfile> cut = ranks;
  cut[1].dropped_spans = 3;
  cut[2].dropped_spans = 70;
  CHECK(profile_table(cut).find("incomplete: 70 spans of rank 2 were dropped, all behind its first "
                                "2097152; trace fewer steps") != std::string::npos);
}

TEST_CASE("the events of ranks are one trace") {
  const std::string text = "{\"traceEvents\":[" + trace_events(kSpans, 0, "n1") + "," +
                           trace_events(kSpans, 3, "n2") + "]}";
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
  CHECK(longest == doctest::Approx(200'000));  // microseconds
  CHECK(text.find(R"("name":"all_reduce \"loss\"","pid":3)") != std::string::npos);
}

}  // namespace llmtrain::train
