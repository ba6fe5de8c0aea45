// What a crash, a full disk or a damaged byte may do to a store: nothing that matters.

#include <csignal>
#include <set>
#include <sys/resource.h>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Runs `action` in a child process; returns its wait status.
int in_child(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = action();
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

/// Small shards, so that each save has several files, and retention at work.
StoreOptions busy_options(Failpoint failpoint = {}) {
  return {.max_shard_bytes = 600, .keep_last = 2, .failpoint = std::move(failpoint)};
}

std::vector<fs::path> leftovers(const fs::path& root) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (name.find(".tmp-") != std::string::npos || name.find(".old-") != std::string::npos ||
        name.starts_with(".trash-")) {
      found.push_back(entry.path());
    }
  }
  return found;
}

/// The points that a save of `step` over `num_earlier` checkpoints passes, in order.
std::vector<std::string> points_of_save(std::uint64_t num_earlier, std::uint64_t step) {
  const ScratchDir dir;
  std::vector<std::string> points;
  CheckpointStore store = CheckpointStore::open_writer(
      dir.path(), busy_options([&](std::string_view point) { points.emplace_back(point); }));
  for (std::uint64_t earlier = 1; earlier <= num_earlier; ++earlier) save_small(store, earlier);
  points.clear();
  save_small(store, step);
  return points;
}

}  // namespace

TEST_CASE("a save passes the named points and no others") {
  std::set<std::string, std::less<>> seen;
  for (const std::uint64_t step : {2u, 3u}) {
    for (const std::string& point : points_of_save(2, step)) seen.insert(point);
  }
  CHECK(seen == std::set<std::string, std::less<>>(std::begin(kFailpoints), std::end(kFailpoints)));
}

TEST_CASE("killed at any point of any save, the run resumes from the old or the new checkpoint") {
  struct Case {
    std::uint64_t num_earlier, step;
  };
  int num_old = 0;
  int num_new = 0;
  // The first save, a later one with retention, and one that replaces the newest.
  for (const Case& c : {Case{0, 1}, Case{2, 3}, Case{2, 2}}) {
    const std::vector<std::string> points = points_of_save(c.num_earlier, c.step);
    for (std::size_t victim = 0; victim < points.size(); ++victim) {
      CAPTURE(c.step);
      CAPTURE(points[victim]);
      const ScratchDir dir;
      {
        CheckpointStore store = CheckpointStore::open_writer(dir.path(), busy_options());
        for (std::uint64_t step = 1; step <= c.num_earlier; ++step) save_small(store, step);
      }
      const int status = in_child([&] {
        std::size_t passed = 0;
        CheckpointStore store =
            CheckpointStore::open_writer(dir.path(), busy_options([&](std::string_view) {
                                           if (passed++ == victim) ::kill(::getpid(), SIGKILL);
                                         }));
        save_small(store, c.step);
        return 0;
      });
      REQUIRE(WIFSIGNALED(status));

      // Twice, because a recovery may be killed as well.
      for (int restart = 0; restart < 2; ++restart) {
        CheckpointStore store = CheckpointStore::open_writer(dir.path(), busy_options());
        const NewestValid found = store.newest_valid(VerifyLevel::hash);
        CHECK(found.rejected.empty());
        CHECK(leftovers(dir.path()).empty());
        if (found.step) {
          CHECK((*found.step == c.step || *found.step == c.num_earlier));
          CHECK(holds_small(store, *found.step));
        } else {
          CHECK(c.num_earlier == 0);
        }
        if (restart == 0) (found.step == c.step ? num_new : num_old) += 1;
      }
      CheckpointStore store = CheckpointStore::open_writer(dir.path(), busy_options());
      save_small(store, c.step);
      CHECK(holds_small(store, c.step));
    }
  }
  CHECK(num_old > 20);
  CHECK(num_new > 5);
}

TEST_CASE("an error at any point leaves the old or the new checkpoint and no temporary directory") {
  for (const std::uint64_t step : {3u, 2u}) {
    for (const std::string& point : points_of_save(2, step)) {
      CAPTURE(step);
      CAPTURE(point);
      const ScratchDir dir;
      bool armed = false;
      CheckpointStore store =
          CheckpointStore::open_writer(dir.path(), busy_options([&](std::string_view at) {
                                         if (armed && at == point) throw StorageError("injected");
                                       }));
      save_small(store, 1);
      save_small(store, 2);
      armed = true;
      CHECK_THROWS_AS(save_small(store, step), StorageError);
      for (const fs::path& path : leftovers(dir.path())) {
        CHECK(path.filename().string().find(".tmp-") == std::string::npos);
      }
      const NewestValid found = store.newest_valid(VerifyLevel::hash);
      CHECK(found.rejected.empty());
      REQUIRE(found.step.has_value());
      CHECK(*found.step >= 2);
      CHECK(holds_small(store, *found.step));
    }
  }
}

TEST_CASE("a write that fails anywhere in a save is a storage error and harms no checkpoint") {
  const ScratchDir dir;
  {
    CheckpointStore store = CheckpointStore::open_writer(dir.path(), busy_options());
    save_small(store, 1);
  }
  std::set<int> codes;
  // A file-size limit fails the first write that passes it: in a header, in data, in the manifest.
  for (rlim_t limit = 0; limit <= 8192; limit += 73) {
    CAPTURE(limit);
    const int status = in_child([&] {
      CheckpointStore store = CheckpointStore::open_writer(dir.path(), busy_options());
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit file_size{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &file_size);
      try {
        save_small(store, 2);
      } catch (const StorageError& error) {
        const std::string message = error.what();
        return message.find("File too large") != std::string::npos &&
                       message.find("earlier checkpoints are intact") != std::string::npos
                   ? 7
                   : 98;
      }
      return 0;
    });
    REQUIRE(WIFEXITED(status));
    codes.insert(WEXITSTATUS(status));
    CHECK(leftovers(dir.path()).empty());
    const CheckpointStore store = CheckpointStore::open_reader(dir.path());
    CHECK(holds_small(store, 1));
    CHECK(store.newest_valid(VerifyLevel::hash).step == (WEXITSTATUS(status) == 0 ? 2u : 1u));
    fs::remove_all(store.directory_of(2));
  }
  CHECK(codes == std::set<int>{0, 7});
}

TEST_CASE("every flipped byte of manifest and headers and 64 of the payload are found by hash") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 600});
  save_small(store, 1);
  const auto flips_found = [&](const fs::path& path, std::size_t at) {
    const std::string good = slurp(path);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    spill(path, bad);
    const std::vector<Problem> problems = store.verify(1, VerifyLevel::hash);
    spill(path, good);
    return !problems.empty() && problems[0].file == path.filename();
  };
  const fs::path manifest = store.directory_of(1) / "manifest.json";
  for (std::size_t at = 0; at < fs::file_size(manifest); ++at) REQUIRE(flips_found(manifest, at));

  const PhiloxKey key = philox_key(1, "test", "flips");
  const Manifest saved = read_manifest(store.directory_of(1));
  for (const auto& [file, record] : saved.files) {
    const fs::path path = store.directory_of(1) / file;
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, slurp(path).data(), 8);
    for (std::size_t at = 0; at < 8 + header_bytes; ++at) REQUIRE(flips_found(path, at));
    for (std::uint64_t draw = 0; draw < 64; ++draw) {
      const std::uint64_t payload = record.bytes - 8 - header_bytes;
      REQUIRE(flips_found(path, 8 + header_bytes + philox_below(key, 0, draw, payload)));
    }
  }
  CHECK(store.verify(1, VerifyLevel::hash).empty());
}

TEST_CASE("every truncation, an addition, and swapped or missing files are found without hashing") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 600});
  save_small(store, 1);
  const fs::path folder = store.directory_of(1);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  REQUIRE(files.size() > 3);
  for (const fs::path& path : files) {
    CAPTURE(path.filename());
    const std::string good = slurp(path);
    for (std::size_t size = 0; size < good.size(); size += (size < 16 ? 1 : 13)) {
      spill(path, good.substr(0, size));
      CHECK_FALSE(store.verify(1, VerifyLevel::header).empty());
    }
    spill(path, good + "x");
    CHECK_FALSE(store.verify(1, VerifyLevel::header).empty());
    fs::remove(path);
    CHECK_FALSE(store.verify(1, VerifyLevel::header).empty());
    fs::create_directory(path);
    CHECK_FALSE(store.verify(1, VerifyLevel::header).empty());
    fs::remove(path);
    spill(path, good);
  }
  const fs::path a = folder / "shard-0000-0000.safetensors";
  const fs::path b = folder / "shard-0000-0001.safetensors";
  fs::rename(a, folder / "c");
  fs::rename(b, a);
  fs::rename(folder / "c", b);
  CHECK(store.verify(1, VerifyLevel::header).size() >= 2);
}

}  // namespace llmtrain::checkpoint
