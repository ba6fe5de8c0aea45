// Who may write to a directory of checkpoints, and what becomes of those who may no more.
#include "lib/checkpoint/store_lock.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <optional>
#include <sys/file.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/lock_owner.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

TEST_CASE("a lock whose file system is gone is given up without an end of the process") {
  const ScratchDir dir;
  const fs::path root = dir.path() / "run", away = dir.path() / "away";
  fs::create_directories(root);
  {
    const StoreLock lock = StoreLock::acquire(root);
    fs::rename(root, away);
    spill(root, "no directory any more");  // opening the lock fails, as with ESTALE
  }
  CHECK(fs::exists(away / "lock"));
}

TEST_CASE("two writers of one directory exclude each other; a dead one is taken over") {
  const ScratchDir dir;
  {
    const CheckpointStore store = CheckpointStore::open_writer(dir.path());
    const std::string message = message_of([&] { CheckpointStore::open_writer(dir.path()); });
    CHECK(message.find("process " + std::to_string(::getpid())) != std::string::npos);
    CHECK_NOTHROW(CheckpointStore::open_reader(dir.path()));
  }
  CHECK_FALSE(fs::exists(dir.path() / "lock"));

  const pid_t child = ::fork();
  if (child == 0) {
    const CheckpointStore store = CheckpointStore::open_writer(dir.path());
    ::_exit(0);  // without the destructor
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(fs::exists(dir.path() / "lock"));
  const std::string dead = slurp(dir.path() / "lock");
  CHECK_NOTHROW(CheckpointStore::open_writer(dir.path()));

  // The pid lives again, as another process that started at another time.
  std::string reused = dead;
  const std::string pid = "\"pid\": " + std::to_string(child);
  reused.replace(reused.find(pid), pid.size(), "\"pid\": " + std::to_string(::getpid()));
  spill(dir.path() / "lock", reused);
  CHECK_NOTHROW(CheckpointStore::open_writer(dir.path()));

  std::string remote = dead;
  for (const std::string key : {"\"host\": \"", "\"boot_id\": \""}) {
    remote.replace(remote.find(key), key.size(), key + "not-");
  }
  spill(dir.path() / "lock", remote);
  CHECK(message_of([&] { CheckpointStore::open_writer(dir.path()); }).find("on host not-") !=
        std::string::npos);
  spill(dir.path() / "lock", "junk");
  CHECK_THROWS_AS(CheckpointStore::open_writer(dir.path()), Error);
  CHECK(names_in(dir.path()) == std::set<std::string>{"lock"});
}

TEST_CASE("a Slurm job that was started again takes over the lock of its earlier start alone") {
  const ScratchDir dir;
  const auto open_as = [&](const char* job, const char* restarts) {
    ::setenv("SLURM_JOB_ID", job, 1);
    ::setenv("SLURM_RESTART_COUNT", restarts, 1);
    return message_of([&] { CheckpointStore::open_writer(dir.path()); });
  };
  spill(dir.path() / "lock",
        R"({"host": "another", "pid": 5, "start_ticks": 7, "job": "81", "restarts": 1})");
  CHECK(open_as("82", "2").find("process 5 on host another (Slurm job 81, start 2)") !=
        std::string::npos);
  CHECK_FALSE(open_as("81", "1").empty());
  CHECK_FALSE(open_as("81", "0").empty());
  CHECK(open_as("81", "2").empty());
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
}

TEST_CASE(
    "whoever has lost the lock saves and deletes nothing more, and leaves it to the new owner") {
  const ScratchDir dir;
  std::optional<CheckpointStore> old = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  for (const std::uint64_t step : {1u, 2u}) save_small(*old, step);
  // The machine was lost, and Slurm has started the job again on another one.
  const std::string other =
      R"({"host": "b", "pid": 5, "start_ticks": 7, "job": "81", "restarts": 2})"
      "\n";
  spill(dir.path() / "lock", other);
  const std::string lost = message_of([&] { save_small(*old, 3); });
  CAPTURE(lost);
  CHECK(lost.find("taken over by process 5 on host b (Slurm job 81, start 3)") !=
        std::string::npos);
  CHECK(lost.find("space, quota") == std::string::npos);  // the disk is well
  CHECK_THROWS_AS(save_small(*old, 3), LockLost);
  CHECK_THROWS_AS(old->apply_retention(), LockLost);
  CHECK(old->list() == std::vector<std::uint64_t>{1, 2});
  old.reset();
  CHECK(slurp(dir.path() / "lock") == other);
}

TEST_CASE("a lock that is lost while a save is written is seen before the save is") {
  const ScratchDir dir;
  const auto spoil = [&](std::string_view when, const std::function<void()>& how) {
    CheckpointStore store =
        CheckpointStore::open_writer(dir.path(), {.failpoint = [&](std::string_view at) {
                                       if (at == when) how();
                                     }});
    const std::string problem = message_of([&] { save_small(store, 9); });
    CHECK(store.list().empty());
    return problem;
  };
  const auto take = [&] {
    spill(dir.path() / "lock", R"({"host": "b", "pid": 5, "start_ticks": 7})");
  };
  for (const char* point :
       {"directory.created", "shard.sync", "save.written", "manifest.sync", "directory.sync"}) {
    CAPTURE(point);
    const std::string problem = spoil(point, take);
    CAPTURE(problem);
    CHECK(problem.find("taken over by process 5 on host b, because") != std::string::npos);
    fs::remove(dir.path() / "lock");
  }
  CHECK(spoil("shard.sync", [&] { fs::remove(dir.path() / "lock"); }).find("was deleted while") !=
        std::string::npos);
  CHECK(names_in(dir.path()).empty());
  CHECK(spoil("shard.sync", [&] {
          spill(dir.path() / "lock", "junk");
        }).find("by a process whose name in it cannot be read") != std::string::npos);
  // A new owner's cleaning takes the files that are being written.
  fs::remove(dir.path() / "lock");
  const std::string cleared = spoil("shard.sync", [&] {
    take();
    for (const std::string& name : names_in(dir.path())) {
      if (name.find(".tmp-") != std::string::npos) fs::remove_all(dir.path() / name);
    }
  });
  CHECK(cleared.find("taken over by process 5 on host b") != std::string::npos);
}

TEST_CASE("nobody takes a lock over while its owner makes a save visible, signals or not") {
  const ScratchDir dir;
  struct sigaction interrupts {};  // without SA_RESTART: what waits is told to look again
  struct sigaction before {};
  interrupts.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR2, &interrupts, &before) == 0);
  const auto as_start = [&](const char* restarts) {
    ::setenv("SLURM_JOB_ID", "81", 1);
    ::setenv("SLURM_RESTART_COUNT", restarts, 1);
  };
  std::atomic<bool> taken = false;
  std::thread taker;
  as_start("0");
  {
    CheckpointStore store = CheckpointStore::open_writer(
        dir.path(), {.failpoint = [&](std::string_view at) {
          if (at != "commit.rename") return;
          as_start("1");
          taker = std::thread([&] {
            const CheckpointStore next = CheckpointStore::open_writer(dir.path());
            taken = true;
            CHECK(next.list() == std::vector<std::uint64_t>{1});
          });
          for (int i = 0; i < 10; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            if (!taken) ::pthread_kill(taker.native_handle(), SIGUSR2);
          }
          CHECK_FALSE(taken);
        }});
    save_small(store, 1);
    taker.join();
    CHECK(taken);
  }
  ::sigaction(SIGUSR2, &before, nullptr);
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
}

TEST_CASE(
    "of an owner in another container only its hold on the directory tells whether it lives") {
  const ScratchDir dir;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  // This process has that number in another namespace, too.
  spill(dir.path() / "lock",
        fmt::format(R"({{"host": "{}", "pid": {}, "start_ticks": 1, "pid_namespace": 1}})", host,
                    ::getpid()));
  const int directory = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(directory, LOCK_EX | LOCK_NB) == 0);
  CHECK(message_of([&] { CheckpointStore::open_writer(dir.path()); }).find("held by process") !=
        std::string::npos);
  ::close(directory);
  {
    const CheckpointStore store = CheckpointStore::open_writer(dir.path());
    const int again = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(::flock(again, LOCK_EX | LOCK_NB) != 0);  // who writes holds it
    ::close(again);
    CHECK(slurp(dir.path() / "lock").find("pid_namespace") != std::string::npos);
  }
  CHECK_FALSE(fs::exists(dir.path() / "lock"));
}

TEST_CASE(
    "a container that was started again has another name, and takes the lock of the dead one") {
  const ScratchDir dir;
  LockOwner other = this_process();
  other.host = "3f2a77c1bb01";
  other.pid_namespace += 1;
  spill(dir.path() / "lock", to_text(other));
  const int directory = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(directory, LOCK_EX | LOCK_NB) == 0);
  CHECK(message_of([&] { CheckpointStore::open_writer(dir.path()); }).find("held by process") !=
        std::string::npos);
  ::close(directory);
  CHECK_NOTHROW(CheckpointStore::open_writer(dir.path()));
  // Of another machine nobody knows anything.
  other.boot_id = "6753a63c-0000-0000-0000-000000000000";
  spill(dir.path() / "lock", to_text(other));
  CHECK(message_of([&] { CheckpointStore::open_writer(dir.path()); }).find("held by process") !=
        std::string::npos);
}

TEST_CASE("of an owner on a host of this name that runs since another time, its hold tells, too") {
  const ScratchDir dir;
  LockOwner other = this_process();
  REQUIRE_FALSE(other.boot_id.empty());
  CHECK(parse_owner(to_text(other), "test").boot_id == other.boot_id);
  other.boot_id = "6753a63c-0000-0000-0000-000000000000";
  other.pid = 4'000'000;  // no process here
  spill(dir.path() / "lock", to_text(other));
  const int directory = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(directory, LOCK_EX | LOCK_NB) == 0);
  CHECK(message_of([&] { CheckpointStore::open_writer(dir.path()); }).find("held by process") !=
        std::string::npos);
  ::close(directory);
  CHECK_NOTHROW(CheckpointStore::open_writer(dir.path()));  // the host was started again

  // Locks of earlier versions do not tell: processes here do.
  other.boot_id.clear();
  spill(dir.path() / "lock", to_text(other));
  CHECK(to_text(other).find("boot_id") == std::string::npos);
  CHECK_NOTHROW(CheckpointStore::open_writer(dir.path()));
}

TEST_CASE("whoever takes a lock holds its directory, also when another one looked just then") {
  const ScratchDir dir;
  const auto is_held = [&] {
    const int other = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool held = ::flock(other, LOCK_EX | LOCK_NB) != 0;
    ::close(other);
    return held;
  };
  const int looks = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(::flock(looks, LOCK_EX | LOCK_NB) == 0);
  std::thread gives_back([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::close(looks);
  });
  {
    const CheckpointStore store = CheckpointStore::open_writer(dir.path());
    gives_back.join();
    CHECK(is_held());
  }
  CHECK_FALSE(is_held());
  // And before there is a lock that others could find.
  DirectoryHold hold;
  CHECK(hold.take(dir.path()));
  CHECK(is_held());
  DirectoryHold later = std::move(hold);
  CHECK(is_held());
  CHECK(later.take(dir.path()));  // as it has it
}

TEST_CASE("a hold counts where all machines see it: on disks of one machine, and NFS") {
  constexpr long kExt4 = 0xEF53, kNfs = 0x6969, kLustre = 0x0BD00BD0, kBeegfs = 0x19830326,
                 kGpfs = 0x47504653, kFuse = 0x65735546;
  for (const long type : {kExt4, kNfs}) CHECK(flock_reaches_all(type));
  for (const long type : {kLustre, kBeegfs, kGpfs, kFuse}) CHECK_FALSE(flock_reaches_all(type));
  // Nothing that a process of this kernel tells says more than that of another one.
  LockOwner other = this_process();
  other.boot_id = "another";
  other.pid = 4'000'000;
  DirectoryHold hold;
  CHECK(is_running(other, this_process(), "/proc", hold));
}

TEST_CASE("whoever waits for an owner to end does not hold it up, and says once that it waits") {
  const ScratchDir dir;
  const CheckpointStore store = CheckpointStore::open_writer(dir.path());
  const fs::path said = dir.path() / "said";
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::open(said.c_str(), O_WRONLY | O_CREAT, 0644);
    ::dup2(out, STDERR_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::_exit(message_of([&] { CheckpointStore::open_writer(dir.path()); }).empty() ? 1 : 0);
  }
  const int lock = ::open((dir.path() / "lock").c_str(), O_RDWR | O_CLOEXEC);
  int looks = 0, busy = 0, status = 0;
  const auto pause = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  for (; ::waitpid(child, &status, WNOHANG) == 0; ++looks) {
    const bool is_free = ::flock(lock, LOCK_EX | LOCK_NB) == 0;
    busy += is_free ? 0 : 1;
    // Now and then the owner is at it for longer than the other one waits before it looks again.
    if (is_free && looks % 4 == 0) pause(80);
    if (is_free) ::flock(lock, LOCK_UN);
    pause(7);
  }
  ::close(lock);
  CAPTURE(looks);
  CHECK(status == 0);
  CHECK(looks > 20);
  CHECK(busy < looks / 4);
  const std::string text = slurp(said);
  const std::string line = "waits for a process that is at it";
  const std::size_t at = text.find(line);
  CHECK(at < text.size());
  CHECK(text.find(line, at + 1) > text.size());
}

TEST_CASE("a forked child that lets go of an inherited store does not free the parent's lock") {
  const ScratchDir dir;
  std::optional<CheckpointStore> store = CheckpointStore::open_writer(dir.path());
  const pid_t child = ::fork();
  if (child == 0) {
    store.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(fs::exists(dir.path() / "lock"));
}

}  // namespace llmtrain::checkpoint
