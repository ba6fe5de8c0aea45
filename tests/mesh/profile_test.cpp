// `profiler` with several ranks: what each of them did in the steps of the window, in one file.
#include <filesystem>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("a profile has the steps, kernels, exchanges and files of every rank, and names one") {
  const Workshop w;
  const ProcessResult plain = w.run(2, {"run.output_dir=plain", "parallelism={dp: 1, pp: 2}"});
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
  const ProcessResult result =
      w.run(2, {"run.output_dir=p", "parallelism={dp: 1, pp: 2}",
                "profiler={first_step: 3, num_steps: 4}", "checkpoint.interval=5"});
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.output.find("slowest: rank ") != std::string::npos);
  CHECK(losses_and_norms(w.scratch / "p") == losses_and_norms(w.scratch / "plain"));

  const auto directory = w.scratch / "p" / "profile" / "steps-00000003-00000006";
  const auto trace = nlohmann::json::parse(read_file(directory / "trace.json"));
  std::map<int, std::map<std::string, std::set<std::string>>> seen;  // rank, kind: names
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    CHECK(event.at("ts").get<double>() >= 0);
    seen[event.at("pid").get<int>()][event.at("cat").get<std::string>()].insert(
        event.at("name").get<std::string>());
  }
  REQUIRE(seen.size() == 2);
  for (auto& [rank, kinds] : seen) {
    CAPTURE(rank);
    CHECK(kinds["phase"] == std::set<std::string>{"step 3", "step 4", "step 5", "step 6"});
    CHECK(kinds["action"].size() >= 9);  // F and B of four micro-batches, and the update
    CHECK(kinds["action"].contains("update"));
    CHECK(kinds["compute"].contains("matmul"));
    CHECK(!kinds["communication"].empty());
    const std::set<std::string>& io = kinds["io"];
    CHECK(io.contains("samples"));
    CHECK(io.contains("checkpoint"));
    CHECK(io.contains(fmt::format("write shard-{:04}-0000.safetensors", rank)));
    CHECK(io.contains("write manifest.json") == (rank == 0));
  }
  const std::string table = read_file(directory / "ranks.txt");
  CHECK(table.find("slowest: rank ") != std::string::npos);
  CHECK(table.find("backward") != std::string::npos);

  const std::string never = "nothing was traced";
  const ProcessResult late = w.run(2, {"run.output_dir=late", "profiler.first_step=1000"});
  CHECK(late.exit_code == 0);
  CHECK(late.output.find("profiler.first_step is 1000, and this start ended") != std::string::npos);
  CHECK(late.output.find(never) == late.output.rfind(never));  // rank 0 says it, once
  CHECK(plain.output.find(never) == std::string::npos);
  CHECK(result.output.find(never) == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(w.scratch / "late" / "profile"));
}

}  // namespace llmtrain::test
