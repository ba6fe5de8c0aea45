// Saves by several writers, in place and in the background: who waits, who learns of a failure.
#include "lib/checkpoint/collective_save.hpp"

#include <atomic>
#include <cerrno>
#include <future>
#include <list>
#include <system_error>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/comm/world.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

using std::chrono::milliseconds;

/// A point of the protocol at which writers stay until they are let go.
class Gate {
 public:
  explicit Gate(std::string point) : point_(std::move(point)) {}
  Failpoint failpoint() {
    return [this](std::string_view at) {
      if (at != point_) return;
      arrived_ = true;
      opened_.wait();
    };
  }
  bool was_reached() const { return arrived_; }
  void open() { opener_.set_value(); }

 private:
  std::string point_;
  std::atomic<bool> arrived_ = false;
  std::promise<void> opener_;
  std::shared_future<void> opened_ = opener_.get_future().share();
};

/// What writer `rank` of `size` saves of small_state(step): its rows of every tensor that has as
/// many, and the first one all others.
struct Share {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorBox> boxes;

  Share(std::uint64_t step, int rank, int size) {
    for (const WholeTensor& tensor : small_state(step)) {
      Box box = whole_box(tensor.shape);
      if (!tensor.shape.empty() && tensor.shape[0] >= size) {
        const std::int64_t begin = tensor.shape[0] * rank / size;
        box.offset[0] = begin;
        box.shape[0] = tensor.shape[0] * (rank + 1) / size - begin;
      } else if (rank != 0) {
        continue;
      }
      bytes.push_back(cut(tensor, box));
      boxes.push_back({tensor.name, tensor.dtype, tensor.shape, box, bytes.back(), {}});
    }
  }
};

/// The store of a writer: the first one's may write.
CheckpointStore open_as(int rank, const fs::path& root, Failpoint failpoint = {}) {
  StoreOptions options{.max_shard_bytes = 600, .keep_last = 2, .failpoint = std::move(failpoint)};
  return rank == 0 ? CheckpointStore::open_writer(root, std::move(options))
                   : CheckpointStore::open_reader(root, std::move(options));
}

bool has_leftovers(const fs::path& root) {
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a save in the background is written while its caller goes on, and seen when committed") {
  const ScratchDir dir;
  Gate gate("shard.sync");
  CheckpointStore store = open_as(0, dir.path(), gate.failpoint());
  const auto alone = make_self_communicator("writers");
  Share share(5, 0, 1);
  const auto save =
      store.begin(5, std::move(share.boxes), small_run(5), *alone, Writing::in_background);
  CHECK_FALSE(save->is_idle());
  CHECK_FALSE(save->is_idle(milliseconds(20)));
  CHECK(store.list().empty());
  gate.open();
  while (!save->is_idle(milliseconds(1000))) {
  }
  CHECK(store.list().empty());  // nothing is committed before all agree
  CHECK_FALSE(save->advance());
  CHECK(save->advance());
  CHECK(holds_small(store, 5));
  CHECK(save->advance());  // and no more
}

TEST_CASE("three writers commit one checkpoint, which none sees before all have written") {
  for (const Writing writing : {Writing::by_caller, Writing::awaited, Writing::in_background}) {
    const ScratchDir dir;
    std::atomic<int> written = 0;
    std::atomic<int> seen_early = 0;
    testing::run_job(3, [&](Transport& transport) {
      World world(transport);
      const int rank = world.place().rank;
      const auto writers = world.make_group("writers", {0, 1, 2}, rank);
      CheckpointStore store = open_as(rank, dir.path(), [&](std::string_view point) {
        if (point == "save.written") ++written;
        if (point == "manifest.create" && written < 3) ++seen_early;
      });
      for (const std::uint64_t step : {1u, 2u, 3u, 4u}) {
        Share share(step, rank, 3);
        const auto save =
            store.begin(step, std::move(share.boxes), small_run(step), *writers, writing);
        while (!save->advance()) {
        }
        CHECK(CheckpointStore::open_reader(dir.path()).list().back() == step);
        writers->barrier("test");
        written = 0;
        writers->barrier("test");
      }
    });
    CHECK(seen_early == 0);
    const CheckpointStore store = CheckpointStore::open_reader(dir.path());
    CHECK(store.list() == std::vector<std::uint64_t>{3, 4});
    CHECK(holds_small(store, 3));
    CHECK(holds_small(store, 4));
  }
}

TEST_CASE("what a writer cannot read back as it was written is kept beside two that are valid") {
  for (const Writing writing : {Writing::by_caller, Writing::awaited, Writing::in_background}) {
    for (int damaged = 0; damaged < 3; ++damaged) {
      const ScratchDir dir;
      testing::run_job(3, [&](Transport& transport) {
        World world(transport);
        const int rank = world.place().rank;
        const auto writers = world.make_group("writers", {0, 1, 2}, rank);
        std::uint64_t saving = 0;
        CheckpointStore store = open_as(rank, dir.path(), [&](std::string_view point) {
          if (saving != 3 || point != "latest.written") return;
          const fs::path shard =
              dir.path() / "step-00000003" / fmt::format("shard-{:04}-0000.safetensors", damaged);
          std::string bytes = slurp(shard);
          bytes.back() = static_cast<char>(bytes.back() ^ 1);
          spill(shard, bytes);
        });
        using Steps = std::vector<std::uint64_t>;
        const std::vector<Steps> left{{1}, {1, 2}, {1, 2, 3}, {2, 3, 4}, {4, 5}};
        for (saving = 1; saving <= left.size(); ++saving) {
          Share share(saving, rank, 3);
          const auto save =
              store.begin(saving, std::move(share.boxes), small_run(saving), *writers, writing);
          while (!save->advance()) {
          }
          CHECK(store.list() == left[saving - 1]);
          writers->barrier("test");
        }
      });
    }
  }
}

TEST_CASE("what all writers save together must have room, and not only what one does") {
  const ScratchDir dir;
  std::uint64_t free_bytes = 1'000'000;
  std::atomic<int> refused = 0;
  testing::run_job(3, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const auto writers = world.make_group("writers", {0, 1, 2}, rank);
    StoreOptions options{.free_bytes = [&](const fs::path&) { return free_bytes; }};
    CheckpointStore store = rank == 0 ? CheckpointStore::open_writer(dir.path(), options)
                                      : CheckpointStore::open_reader(dir.path(), options);
    const auto save = [&](std::uint64_t step) {
      Share share(step, rank, 3);
      const auto saving =
          store.begin(step, std::move(share.boxes), small_run(step), *writers, Writing::by_caller);
      while (!saving->advance()) {
      }
      CHECK(saving->total_bytes() == 1224);
    };
    save(1);
    writers->barrier("test");
    if (rank == 0) free_bytes = 1224;  // a fifth more is asked for
    writers->barrier("test");
    try {
      save(2);
    } catch (const StorageError&) {
      ++refused;
    }
  });
  CHECK(refused == 3);
}

TEST_CASE("what fails on one writer is thrown by all with its rank, and leaves nothing") {
  struct Case {
    int rank;
    std::string point;
  };
  for (const Writing writing : {Writing::by_caller, Writing::awaited, Writing::in_background}) {
    for (const Case& c : {Case{0, "directory.create"}, Case{0, "directory.created"},
                          Case{1, "shard.create"}, Case{2, "shard.sync"}, Case{0, "shard.close"},
                          Case{1, "save.written"}, Case{0, "manifest.half"}}) {
      CAPTURE(c.rank);
      CAPTURE(c.point);
      const ScratchDir dir;
      std::atomic<int> failed = 0;
      testing::run_job(3, [&](Transport& transport) {
        World world(transport);
        const int rank = world.place().rank;
        const auto writers = world.make_group("writers", {0, 1, 2}, rank);
        std::uint64_t saving = 0;
        CheckpointStore store = open_as(rank, dir.path(), [&](std::string_view point) {
          if (saving == 2 && rank == c.rank && point == c.point) throw StorageError("injected");
        });
        for (saving = 1; saving <= 3; ++saving) {
          Share share(saving, rank, 3);
          std::string message;
          try {
            const auto save =
                store.begin(saving, std::move(share.boxes), small_run(saving), *writers, writing);
            while (!save->advance()) {
            }
          } catch (const StorageError& error) {
            message = error.what();
          }
          CHECK(message.empty() == (saving != 2));
          if (message.find(fmt::format("rank {}: injected", c.rank)) != std::string::npos &&
              message.find("earlier checkpoints are intact") != std::string::npos) {
            ++failed;
          }
          writers->barrier("test");
          CHECK_FALSE(has_leftovers(dir.path()));
        }
      });
      CHECK(failed == 3);
      const CheckpointStore store = CheckpointStore::open_reader(dir.path());
      CHECK(store.list() == std::vector<std::uint64_t>{1, 3});
      CHECK(holds_small(store, 1));
    }
  }
}

TEST_CASE("a writer that gets no thread fails the save of all, who learn of it when they agree") {
  const ScratchDir dir;
  std::atomic<int> told = 0;
  testing::run_job(3, [&](Transport& transport) {
    World world(transport);
    const int rank = world.place().rank;
    const auto writers = world.make_group("writers", {0, 1, 2}, rank);
    StoreOptions options;
    if (rank == 1) {
      options.in_thread = [](std::function<std::string()>) -> std::future<std::string> {
        throw std::system_error(EAGAIN, std::generic_category());
      };
    }
    CheckpointStore store = rank == 0 ? CheckpointStore::open_writer(dir.path(), options)
                                      : CheckpointStore::open_reader(dir.path(), options);
    Share share(1, rank, 3);
    const auto save =
        store.begin(1, std::move(share.boxes), small_run(1), *writers, Writing::in_background);
    try {
      while (!save->advance()) {
      }
    } catch (const Error& error) {
      const std::string message = error.what();
      CHECK(error.exit_code() == ExitCode::runtime);
      if (message.find("rank 1: cannot start a thread that writes") == 0) ++told;
    }
  });
  CHECK(told == 3);
  CHECK_FALSE(has_leftovers(dir.path()));
  CHECK(CheckpointStore::open_reader(dir.path()).list().empty());
}

TEST_CASE(
    "a share of the time holds a writer in the background, until it is waited for or given up") {
  const ScratchDir dir;
  const auto alone = make_self_communicator("writers");
  CheckpointStore store =
      CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 600, .background_share = 1e-9});
  std::list<Share> shares;  // read until a save is over
  const auto begin = [&](std::uint64_t step, Writing writing) {
    Share& share = shares.emplace_back(step, 0, 1);
    return store.begin(step, std::move(share.boxes), small_run(step), *alone, writing);
  };
  auto save = begin(1, Writing::in_background);
  CHECK_FALSE(save->is_idle(milliseconds(300)));
  save->hurry();
  while (!save->is_idle(milliseconds(1000))) {
  }
  while (!save->advance()) {
  }
  CHECK(holds_small(store, 1));

  save = begin(2, Writing::by_caller);
  while (!save->advance()) {
  }
  CHECK(holds_small(store, 2));

  save = begin(3, Writing::awaited);
  while (!save->advance()) {
  }
  CHECK(holds_small(store, 3));
  CHECK(save->rested_seconds() == 0);

  save = begin(4, Writing::in_background);
  CHECK_FALSE(save->is_idle(milliseconds(300)));  // it rests
  const auto given_up = std::chrono::steady_clock::now();
  save.reset();
  CHECK(std::chrono::steady_clock::now() - given_up < std::chrono::minutes(1));
  CHECK_FALSE(has_leftovers(dir.path()));
  CHECK(store.list() == std::vector<std::uint64_t>{1, 2, 3});
}

TEST_CASE("a writer that is late rests no more, and says how long it did") {
  const ScratchDir dir;
  const auto alone = make_self_communicator("writers");
  CheckpointStore store =
      CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 600, .background_share = 1e-9});
  Share share(1, 0, 1);
  const auto until = std::chrono::steady_clock::now() + milliseconds(300);
  auto save =
      store.begin(1, std::move(share.boxes), small_run(1), *alone, Writing::in_background, until);
  while (!save->advance()) {
  }
  CHECK(std::chrono::steady_clock::now() >= until);
  CHECK(save->rested_seconds() > 0.1);
  CHECK(save->progress() > 0);
  CHECK(holds_small(store, 1));
}

TEST_CASE("a save that is given up stops soon and takes its directory with it") {
  const ScratchDir dir;
  Gate gate("shard.write.first");
  CheckpointStore store = open_as(0, dir.path(), gate.failpoint());
  const auto alone = make_self_communicator("writers");
  Share share(1, 0, 1);
  auto save = store.begin(1, std::move(share.boxes), small_run(1), *alone, Writing::in_background);
  while (!gate.was_reached()) std::this_thread::yield();
  CHECK(has_leftovers(dir.path()));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    gate.open();
  });
  save.reset();
  opener.join();
  CHECK_FALSE(has_leftovers(dir.path()));
  CHECK(store.list().empty());
}

}  // namespace llmtrain::checkpoint
