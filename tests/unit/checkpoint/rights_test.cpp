// Checkpoints that this user may not read, and directories in which it may not write.
#include <array>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/base/file_errors.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/checkpoint/verify.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What `action` returns, or the error that it throws, behind what it logs: in a process of a user
/// without any rights, since tests may be those of one whom no right stops.
std::string as_nobody(const std::function<std::string()>& action) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    std::string text;
    try {
      text = action();
    } catch (const std::exception& error) {
      text = error.what();
    }
    const bool is_told = ::write(ends[1], text.data(), text.size()) >= 0;
    ::_exit(is_told ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t n = 1; n > 0;) {
    n = ::read(ends[0], part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(n > 0 ? n : 0));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void allow(const fs::path& path, bool may) {
  fs::permissions(path, may ? fs::perms::owner_all : fs::perms::none);
}

}  // namespace

TEST_CASE("what this user may not read of a checkpoint is unread, and says what helps") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  const fs::path folder = store.directory_of(1);
  for (const std::string file : {"manifest.json", "shard-0000-0000.safetensors"}) {
    CAPTURE(file);
    allow(folder / file, false);
    const std::string told = as_nobody([&] {
      const std::string checked = format_problems(store.verify(1, VerifyLevel::header));
      const auto problems = join_problems(std::span(&checked, 1));  // as ranks tell each other
      if (problems.size() != 1 || !problems[0].is_unread) return std::string("not unread");
      try {
        require_rights(folder, problems);
      } catch (const StorageError& error) {
        return std::string("7: ") + error.what();
      }
      return to_string(problems);
    });
    CAPTURE(told);
    CHECK(has(told, "7: " + (folder / file).string() +
                        ": cannot open for reading: Permission denied; give this user the right "
                        "to read it. The checkpoint may be whole"));
    CHECK_FALSE(has(told, "; cannot"));
    CHECK(has(told, "it is tried again"));
    // To whom it is a file like others it is data that cannot be used.
    CHECK(has(as_nobody([&]() -> std::string {
                try {
                  File::open_read(folder / file);
                } catch (const DataError& error) {
                  return std::string("4: ") + error.what();
                }
                return "";
              }),
              "4: " + (folder / file).string() + ": cannot open for reading: Permission denied"));
    fs::permissions(folder / file, static_cast<fs::perms>(0444));
  }
  CHECK(as_nobody([&] { return to_string(store.verify(1, VerifyLevel::hash)); }) == "");
}

TEST_CASE("problems name their file once") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  const fs::path folder = store.directory_of(1);
  const std::string shard = "shard-0000-0000.safetensors";
  const std::string whole = slurp(folder / shard);
  std::string cut = whole;
  cut[0] = 0;
  spill(folder / shard, cut);
  const auto told = [&] { return to_string(store.verify(1, VerifyLevel::header)); };
  const auto lengths = [&] { return check_lengths(folder, 1, read_manifest(folder)); };
  CHECK(told().starts_with(shard + ": "));
  CHECK_FALSE(has(told(), dir.path()));
  fs::remove(folder / shard);
  CHECK(told() == shard + ": cannot open for reading: No such file or directory");
  CHECK(to_string(lengths()) == shard + ": is missing");
  spill(folder / shard, whole + "x");
  CHECK(has(to_string(lengths()), "the manifest says"));
  fs::remove(folder / shard);
  fs::create_directory(folder / shard);
  CHECK(has(to_string(lengths()), "is not a regular file"));
  fs::remove(folder / shard);
  spill(folder / shard, whole);
  CHECK(lengths().empty());
  spill(folder / "manifest.json", "{}");
  CHECK(told().starts_with("manifest.json: "));
  CHECK_FALSE(has(told(), dir.path()));
}

TEST_CASE("a directory for reading alone is said to be, and nothing of a file that never was") {
  const ScratchDir dir;
  const std::string told = as_nobody([&]() -> std::string {
    try {
      CheckpointStore::open_writer(dir.path());
    } catch (const NotWritable& error) {
      return error.error() == EACCES ? "EACCES" : "another reason";
    }
    return "it is writable";
  });
  CHECK(told == "EACCES");
}

TEST_CASE("a save that fails says once what helps against its reason") {
  const std::string general = "Check the disk's space, quota and health";
  const ScratchDir dir;
  {
    CheckpointStore store = CheckpointStore::open_writer(
        dir.path(), {.free_bytes = [](const fs::path&) { return std::uint64_t{10}; }});
    const std::string told = message_of([&] { save_small(store, 1); });
    CAPTURE(told);
    CHECK(has(
        told,
        "free space (older checkpoints may be deleted by hand), or save to another disk; earlier"));
    CHECK_FALSE(has(told, general));
  }
  const auto failing = [&](const std::function<void()>& how) {
    CheckpointStore store =
        CheckpointStore::open_writer(dir.path(), {.failpoint = [&](std::string_view at) {
                                       if (at == "shard.sync") how();
                                     }});
    return message_of([&] { save_small(store, 1); });
  };
  CHECK(failing([] { throw Remedied("full; buy another"); }) ==
        "saving step 1 failed: full; buy another; earlier checkpoints are intact");
  CHECK(failing([] { throw StorageError("it failed"); }) ==
        "saving step 1 failed: it failed; earlier checkpoints are intact. " + general +
            ", or save to another one");
  const std::string told = as_nobody([]() -> std::string {
    const ScratchDir own;
    CheckpointStore store = CheckpointStore::open_writer(own.path());
    fs::permissions(own.path(), fs::perms::owner_read | fs::perms::owner_exec);
    const std::string said = message_of([&] { save_small(store, 1); });
    allow(own.path(), true);
    return said;
  });
  CHECK(has(told,
            "cannot create the directory: Permission denied; earlier checkpoints are intact. "
            "Make the directory writable for this user, or save to another one"));
  CHECK_FALSE(has(told, general));
}

}  // namespace llmtrain::checkpoint
