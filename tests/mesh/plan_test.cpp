// What `llmtrain plan` says of ranks that need different memory, beside what they take.
#include <algorithm>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/mesh/layouts.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

ProcessResult plan_in(const TempDir& folder, const std::string& recipe, int ranks,
                      const std::vector<std::string>& arguments) {
  std::vector<std::string> command{LLMTRAIN_EXECUTABLE, "plan", recipe, "--ranks",
                                   std::to_string(ranks)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, folder.path().string(), {.limit_seconds = 60});
}

}  // namespace

TEST_CASE("the fullest and the emptiest rank of a plan are those of the job") {
  set_mpi_environment();
  struct Case {
    int ranks;
    std::vector<std::string> layout;
  };
  const std::string muon = "optimizer.name=muon", zero = "parallelism.zero=1";
  for (const Case& of : {Case{2, {muon, zero}},
                         {3, {muon, zero, "training.global_batch_size=6"}},
                         {4, {muon, zero}},
                         {4, {muon, zero, "parallelism.tp=2"}},
                         {4, {muon, "parallelism.zero=3", "parallelism.pp=2"}}}) {
    CAPTURE(fmt::format("{} ranks, {}", of.ranks, of.layout.back()));
    const ProbeModel& llama = probe_models().front();
    const ProbeResult found = run_probe(llama, of.ranks, 1, of.layout);
    REQUIRE(found.problem == "");
    const std::vector<double>& extents = found.own.at("extent");
    REQUIRE(std::ssize(extents) == of.ranks);
    const auto [least, most] = std::ranges::minmax(extents);
    CHECK(most > least);

    const TempDir scratch;
    write_file_atomic(scratch / "r.yaml", llama.yaml);
    std::vector<std::string> arguments = of.layout;
    arguments.emplace_back("--json");
    const ProcessResult planned = plan_in(scratch, "r.yaml", of.ranks, arguments);
    REQUIRE_MESSAGE(planned.exit_code == 0, planned.output);
    const auto json = nlohmann::json::parse(planned.output);
    CHECK(json["ranks"]["largest_extent_bytes"] == most);
    CHECK(json["ranks"]["smallest_extent_bytes"] == least);
    const auto fullest = json["rank"].get<std::size_t>();
    CHECK(extents[fullest] == most);
    CHECK(std::max(json["step"]["extent_bytes"], json["eval"]["extent_bytes"]) == most);
    for (const auto& role : json["ranks"]["planned"]) {
      std::uint64_t sum = 0;
      for (const auto& [category, bytes] : role["step"]["category_bytes"].items()) {
        sum += bytes.get<std::uint64_t>();
      }
      CHECK(sum >= role["step"]["peak_bytes"]);  // each at its own instant
      CHECK(role["step"]["peak_bytes"] <= role["peak_bytes"]);
      if (role["rank"] == fullest) {
        CHECK(role["step"]["category_bytes"] == json["step"]["category_bytes"]);
      }
    }
    // The page has each kind, where there are more than these two.
    const std::string page = plan_in(scratch, "r.yaml", of.ranks, of.layout).output;
    for (const auto& role : json["ranks"]["planned"]) {
      const bool is_told =
          page.find(fmt::format("as rank {} ", role["rank"].get<int>())) != std::string::npos;
      CHECK(is_told == (json["ranks"]["planned"].size() > 2));
    }
  }
}

TEST_CASE("processes that a launcher starts plan once, for as many ranks as they are") {
  set_mpi_environment();
  const TempDir scratch;
  write_file_atomic(scratch / "r.yaml", probe_models().front().yaml);
  std::vector<std::string> command = mpirun(4);
  for (const char* word : {LLMTRAIN_EXECUTABLE, "plan", "r.yaml", "parallelism={dp: 2, tp: -1}"}) {
    command.emplace_back(word);
  }
  const ProcessResult planned =
      run_process(command, scratch.path().string(), {.limit_seconds = 60});
  REQUIRE_MESSAGE(planned.exit_code == 0, planned.output);
  const std::string_view ranks = "4 = dp 2 x tp 2";
  const std::size_t at = planned.output.find(ranks);
  CHECK(at != std::string::npos);
  CHECK(planned.output.find(ranks, at + 1) == std::string::npos);
}

TEST_CASE("a plan fits when the fullest rank does, and a run starts then") {
  const Workshop w;
  const std::vector<std::string> layout{"optimizer.name=muon", "parallelism.zero=1"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> arguments = layout;
    arguments.push_back(more);
    return arguments;
  };
  const auto json =
      nlohmann::json::parse(plan_in(w.scratch, "r.yaml", 4, with("--json")).output)["ranks"];
  const auto most = json["largest_extent_bytes"].get<std::uint64_t>();
  const auto least = json["smallest_extent_bytes"].get<std::uint64_t>();
  REQUIRE(least < most);
  const auto limit = [](std::uint64_t bytes) { return fmt::format("run.memory_limit={}B", bytes); };

  const ProcessResult tight = plan_in(w.scratch, "r.yaml", 4, with(limit(most - 1)));
  CHECK(tight.exit_code == 3);
  CHECK(tight.output.find("does NOT fit") != std::string::npos);
  CHECK(tight.output.find(fmt::format("(rank {})", json["planned"][0]["rank"].get<int>())) !=
        std::string::npos);
  CHECK(w.run(4, with(limit(most - 1))).exit_code == 3);
  CHECK(plan_in(w.scratch, "r.yaml", 4, with(limit(most))).exit_code == 0);
  CHECK(w.run(4, with(limit(most))).exit_code == 0);
}

}  // namespace llmtrain::test
