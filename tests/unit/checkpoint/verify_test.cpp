// Checks that several processes share, and that are given up.
#include "lib/checkpoint/verify.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

TEST_CASE(
    "checkers look at other files each, all at the manifest, and together find all there is") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 1});
  save_small(store, 1);  // five files
  const auto part = [&](int checker, int checkers) {
    return store.verify(1, VerifyLevel::hash, {.checker = checker, .checkers = checkers});
  };
  const auto texts_of = [](std::span<const Problem> problems) {
    std::multiset<std::string> texts;
    for (const Problem& problem : problems) {
      const std::string text = to_string(problem);
      texts.insert(text.substr(0, text.find(" (found by rank")));
    }
    return texts;
  };
  const auto join_parts = [&](int checkers) {
    std::vector<std::string> texts;
    for (int n = 0; n < checkers; ++n) texts.push_back(format_problems(part(n, checkers)));
    return join_problems(texts);
  };
  CHECK(join_parts(3).empty());
  constexpr std::array<int, 5> kOfThree{0, 0, 1, 1, 2}, kOfSeven{0, 1, 2, 4, 5};
  for (std::size_t file = 0; file < 5; ++file) {
    fs::remove(store.directory_of(1) / fmt::format("shard-0000-{:04}.safetensors", file));
    for (int checker = 0; checker < 3; ++checker) {
      const auto own = std::count(kOfThree.begin(), kOfThree.begin() + file + 1, checker);
      CHECK(std::ssize(part(checker, 3)) == own);
    }
    const std::string all = to_string(join_parts(7).back());
    CHECK(all.find(fmt::format("(found by rank {})", kOfSeven[file])) ==
          (file == 0 ? std::string::npos : all.size() - 17));
    for (const int checkers : {1, 2, 3, 7}) {
      CHECK(texts_of(join_parts(checkers)) == texts_of(store.verify(1, VerifyLevel::hash)));
    }
  }
  spill(store.directory_of(1) / kManifestName, "{}");
  CHECK(part(0, 3).size() == 1);
  CHECK(part(2, 3).size() == 1);
  CHECK(join_parts(3).size() == 1);
}

TEST_CASE("a check that is given up says nothing of what it has not read") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  std::stop_source stop;
  CHECK(store.verify(1, VerifyLevel::hash, {.stop = stop.get_token()}).empty());
  stop.request_stop();
  CHECK_THROWS_AS(store.verify(1, VerifyLevel::hash, {.stop = stop.get_token()}), StorageError);
}

}  // namespace llmtrain::checkpoint
