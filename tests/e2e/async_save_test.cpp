// checkpoint.async: the same checkpoints, written while the run goes on.
#include <csignal>
#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

const std::vector<std::string> kAsync{"checkpoint.async=true"};
/// Several files, each of several pieces.
const std::string kPieces = "checkpoint.max_shard_size=64KiB";

std::vector<std::string> with_async(std::vector<std::string> overrides) {
  overrides.insert(overrides.end(), kAsync.begin(), kAsync.end());
  return overrides;
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

// By file, hashes of everything that was saved but the manifest.
std::string saved_bytes(const Workspace& here, std::uint64_t step) {
  const auto store = checkpoint::CheckpointStore::open_reader(here.path / "run" / "checkpoints");
  REQUIRE(store.verify(step, checkpoint::VerifyLevel::hash).empty());
  std::string text;
  const checkpoint::Manifest manifest = store.load(step).manifest();
  for (const auto& [name, file] : manifest.files) {
    text += name + " " + to_hex(file.xxh3_128) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("saves beside the run are those in place of it, byte for byte, each said once") {
  for (const char* more :
       {"precision.compute=fp32", "precision={compute: bf16, master: bf16+remainder}"}) {
    CAPTURE(more);
    const Workspace sync(kTinyRecipe), async(kTinyRecipe);
    run_well(sync, {more, kPieces});
    const auto result = async.run(with_async({more, kPieces}));
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    for (const std::uint64_t step : {2u, 4u, 6u}) {
      CHECK(saved_bytes(async, step) == saved_bytes(sync, step));
    }
    CHECK(count(result.output, "saved run/checkpoints/step-") == 3);
    CHECK(holds(result.output, {"6 steps took memory as planned"}));
  }
}

TEST_CASE("a save that is written slowly is hurried by the next one, and by the end of the run") {
  const Workspace plain(kTinyRecipe), slow(kTinyRecipe);
  run_well(plain, with_async({kPieces}));
  const auto result = slow.run(with_async({"checkpoint.async_share=1e-9", kPieces}));
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  for (const std::uint64_t step : {2u, 4u, 6u}) {
    CHECK(saved_bytes(slow, step) == saved_bytes(plain, step));
  }
  // Each but the first finds one that would take days.
  CHECK(count(result.output, "waits: step") == 2);
}

TEST_CASE("a trace has the files of a save beside the run, on threads that are called after it") {
  const Workspace here(kTinyRecipe);
  run_well(here, with_async({"profiler={first_step: 1, num_steps: 10}", "training.max_steps=10",
                             "checkpoint.keep_latest=2"}));
  const auto directory = here.path / "run" / "profile" / "steps-00000001-00000010";
  const std::string text = read_file(directory / "trace.json");
  CHECK(holds(text, {R"("cat":"action","name":"update")"}));
  const auto trace = nlohmann::json::parse(text);
  std::map<int, std::string> threads;
  std::map<std::string, std::set<std::string>> spans;  // io, by thread
  for (const auto& event : trace.at("traceEvents")) {
    const int thread = event.at("tid").get<int>();
    const auto name = event.at("name").get<std::string>();
    if (name == "thread_name") threads[thread] = event.at("args").at("name").get<std::string>();
    if (event.value("cat", "") == "io") spans[threads.at(thread)].insert(name);
  }
  CHECK(spans["step"] == std::set<std::string>{"samples", "checkpoint"});
  const std::set<std::string>& writer = spans["checkpoint writer"];
  const std::string shard = "shard-0000-0000.safetensors";
  CHECK(writer.contains("write " + shard));
  CHECK(writer.contains("write manifest.json"));
  CHECK(writer.contains("read back " + shard));
  CHECK(holds(read_file(directory / "ranks.txt"), {" saves ", " evaluation "}));
}

TEST_CASE("an emulated GPU's saves beside the run are those in place of it, byte for byte" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const std::vector<std::string> gpu{"run.device=cuda",
                                     "precision={compute: bf16, master: bf16+remainder}", kPieces};
  const Workspace sync(kTinyRecipe), async(kTinyRecipe);
  run_well(sync, gpu);
  const auto result = async.run(with_async(gpu));
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  for (const std::uint64_t step : {2u, 4u, 6u}) {
    CHECK(saved_bytes(async, step) == saved_bytes(sync, step));
  }
  CHECK(count(result.output, "to pinned memory of the host") == 1);
  std::vector<std::string> arguments{"plan", "recipe.yaml"};
  for (const std::string& override : with_async(gpu)) arguments.push_back(override);
  const std::string plan = async.call(arguments).output;
  const std::string row = "pinned memory for saves";
  REQUIRE(holds(plan, {row}));
  std::istringstream words(plan.substr(plan.find(row) + row.size()));
  std::string value, unit;
  words >> value >> unit;
  CHECK(holds(result.output, {fmt::format("copies {} {} to pinned memory", value, unit)}));
}

TEST_CASE("a save beside the run takes memory that the plan has, and the run as planned") {
  const Workspace here(kTinyRecipe);
  const auto snapshot = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments{"plan", "recipe.yaml"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const auto plan = here.call(arguments);
    REQUIRE(plan.exit_code == 0);
    return plan.output.find("snapshot") != std::string::npos;
  };
  CHECK_FALSE(snapshot({}));
  CHECK(snapshot(kAsync));
}

TEST_CASE("a signal waits for the save under way and for its own, and the run goes on from there") {
  const std::vector<std::string> overrides =
      with_async({"training.max_steps=400", "checkpoint.interval=3", "eval.interval=null"});
  const Workspace whole(kTinyRecipe), part(kTinyRecipe);
  run_well(whole, overrides);
  const auto stopped = part.run(overrides, {.signal = SIGTERM, .signal_after = "  50/400"});
  INFO(stopped.output);
  REQUIRE(stopped.exit_code == 75);
  const auto resumed = part.run(overrides);
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  CHECK(fingerprint(part.path, 400) == fingerprint(whole.path, 400));
}

TEST_CASE("a run that a bad number stops keeps the save that was under way") {
  const Workspace here(kTinyRecipe);
  const auto result = here.run(with_async({"optimizer.lr=1e38", "optimizer.max_grad_norm=null",
                                           "checkpoint.interval=1", "training.max_steps=40"}));
  INFO(result.output);
  REQUIRE(result.exit_code == 5);
  // Each step that was good is saved, the last of them too.
  const std::int64_t last = here.metrics().back().step;
  CHECK(last >= 1);
  CHECK(holds(result.output, {fmt::format("saved run/checkpoints/step-{:08}", last)}));
}

}  // namespace llmtrain
