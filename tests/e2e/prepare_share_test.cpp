// `data prepare` in several processes at once.
#include <filesystem>
#include <map>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

namespace {

constexpr int kTasks = 4;

// Token files and decisions of every cache, without what says when sources were written.
std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    contents[entry.path().lexically_relative(directory).string()] = read_file(entry.path());
  }
  return contents;
}

struct Sharded {
  Workspace here{kTinyRecipe};
  std::vector<std::string> overrides;

  explicit Sharded(bool cleaned) {
    std::string lines;
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (int word = 0; word < 40; ++word) {
        text += fmt::format("word{}x{} ", i % 300, word * word % 97);
      }
      lines += fmt::format("{{\"text\":\"{}\"}}\n", text);
    }
    here.write("lines.jsonl", lines);
    overrides = {"data.sources=[{path: lines.jsonl}]", "data.shard_size=16KiB",
                 "tokenizer.type=bpe", "tokenizer.vocab_size=257"};
    if (!cleaned) return;
    overrides.push_back("data.cleaning.deduplication.exact=true");
    overrides.push_back("data.cleaning.deduplication.near={threshold: 0.9}");
  }

  test::ProcessResult prepare(const std::string& cache, std::vector<std::string> more = {},
                              const test::ProcessEvents& events = {}) const {
    std::vector<std::string> arguments{"data", "prepare", "recipe.yaml"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    arguments.push_back("data.cache_dir=" + cache);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return here.call(std::move(arguments), events);
  }

  // All tasks at once, each of them twice; their output.
  std::string prepare_at_once(const std::string& cache) const {
    std::vector<test::ProcessResult> results(2 * kTasks);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2 * kTasks; ++i) {
      threads.emplace_back([&, i] {
        results[static_cast<std::size_t>(i)] =
            prepare(cache, {"--shard", fmt::format("{}/{}", i % kTasks, kTasks)});
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string output;
    for (const test::ProcessResult& result : results) {
      CHECK(result.exit_code == 0);
      output += result.output;
    }
    return output;
  }

  std::map<std::string, std::string> expected() const {
    const auto result = prepare("one");
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    return files_in(here.path / "one");
  }
};

std::size_t count_of(const std::map<std::string, std::string>& files, std::string_view suffix) {
  std::size_t count = 0;
  for (const auto& [name, content] : files) count += name.ends_with(suffix) ? 1u : 0u;
  return count;
}

}  // namespace

TEST_CASE("tasks at once make the same files as one process") {
  for (const bool cleaned : {false, true}) {
    CAPTURE(cleaned);
    const Sharded sharded(cleaned);
    const auto expected = sharded.expected();
    REQUIRE(count_of(expected, ".tokens") >= 2 * kTasks);
    std::string output = sharded.prepare_at_once("many");
    // Signatures first, where there are some; whoever came last may have gone on.
    if (cleaned) output += sharded.prepare_at_once("many");
    INFO(output);
    CHECK(holds(output, {"complete: token files of all tasks are there"}));
    CHECK((files_in(sharded.here.path / "many") == expected));
    const auto finished = sharded.prepare("many", {"--finish"});
    CHECK(finished.exit_code == 0);
    CHECK(holds(finished.output, {"complete", "training: "}));
    CHECK((files_in(sharded.here.path / "many") == expected));
  }
}

TEST_CASE("what a task has not made is named with the command that makes it") {
  const Sharded sharded(true);
  const auto expected = sharded.expected();
  const auto shard = [&](int i) {
    const auto result = sharded.prepare("some", {"--shard", fmt::format("{}/3", i)});
    CHECK(result.exit_code == 0);
    return result.output;
  };
  CHECK(holds(shard(0), {"signatures of documents: ", "this command again",
                         "recipe.yaml 'data.sources=[{path: lines.jsonl}]' ", "--shard 1/3\n",
                         "--shard 2/3\n"}));
  const auto early = sharded.prepare("some", {"--finish"});
  CHECK(early.exit_code == static_cast<int>(ExitCode::invalid_data));
  CHECK(holds(early.output, {"signatures of documents: ", "--shard 0/1\n"}));
  CHECK(early.output.find("--shard") == early.output.rfind("--shard"));  // one makes all
  CHECK(holds(shard(2), {"--shard 1/3\n"}));
  CHECK(holds(shard(1), {"token files: ", "--shard 0/3\n", "--shard 2/3\n"}));
  CHECK(!holds(shard(2), {"--shard 2/3\n"}));
  const auto late = sharded.prepare("some", {"--finish"});
  CHECK(late.exit_code == static_cast<int>(ExitCode::invalid_data));
  CHECK(holds(late.output, {"token files: ", "--shard 0/1\n"}));
  CHECK(!holds(late.output, {"--shard 1/"}));
  CHECK(holds(shard(0), {"complete"}));
  CHECK((files_in(sharded.here.path / "some") == expected));
  for (const char* bad : {"3/3", "1", "/", "1/", "-1/3", "a/b", "0/0"}) {
    CAPTURE(bad);
    const auto result = sharded.prepare("some", {"--shard", bad});
    CHECK(result.exit_code == static_cast<int>(ExitCode::recipe));
  }
}

TEST_CASE("tasks that are killed at any time, and started again, make the same files") {
  const Sharded sharded(true);
  const auto expected = sharded.expected();
  for (int kill = 0; kill < 24; ++kill) {
    const test::ProcessEvents events{.kill_after_seconds = 0.01 * (1 + kill % 12)};
    sharded.prepare("killed", {"--shard", fmt::format("{}/2", kill % 2)}, events);
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) sharded.prepare("killed", {"--shard", fmt::format("{}/2", i)});
  }
  auto files = files_in(sharded.here.path / "killed");
  std::erase_if(files,
                [](const auto& file) { return file.first.find(".tmp-") != std::string::npos; });
  CHECK((files == expected));
}

}  // namespace llmtrain
