// Loading beside a check of the same files.
#include "lib/checkpoint/check_progress.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

/// Somebody who waits for a file's bytes below `end`.
class Waiter {
 public:
  Waiter(const CheckProgress& progress, std::string file, std::uint64_t end)
      : thread_([this, &progress, file = std::move(file), end] {
          progress.await(file, end);
          done_ = true;
        }) {}
  ~Waiter() { thread_.join(); }
  /// For longer than a thread that is free takes.
  bool waits() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return !done_;
  }
  void join() {
    while (!done_) std::this_thread::yield();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("who loads waits for the file that is being checked, and for no other one") {
  CheckProgress progress;
  progress.await("a", 100);  // nothing has begun
  progress.begin("a");
  progress.await("b", 100);
  progress.pass(50);
  progress.await("a", 50);
  Waiter of_more(progress, "a", 51);
  CHECK(of_more.waits());
  progress.pass(80);
  of_more.join();
  Waiter of_all(progress, "a", 100);
  CHECK(of_all.waits());
  progress.begin("b");  // a is done
  of_all.join();
  Waiter of_b(progress, "b", 1);
  CHECK(of_b.waits());
  progress.finish();
  of_b.join();
}

TEST_CASE("a check that passes, finds damage or is given up keeps nobody waiting") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  std::string shard;
  for (const std::string& name : names_in(store.directory_of(1))) {
    if (name.ends_with(".safetensors")) shard = name;
  }
  CheckProgress progress;
  std::stop_source stop;
  const CheckPart part{.stop = stop.get_token(), .progress = &progress};
  CHECK(store.verify(1, VerifyLevel::hash, part).empty());
  progress.await(shard, 1 << 30);
  const std::string whole = slurp(store.directory_of(1) / shard);
  std::string damaged = whole;
  damaged.back() ^= 1;
  spill(store.directory_of(1) / shard, damaged);
  CHECK_FALSE(store.verify(1, VerifyLevel::hash, part).empty());
  progress.await(shard, 1 << 30);
  stop.request_stop();
  CHECK_THROWS_AS(store.verify(1, VerifyLevel::hash, part), StorageError);
  progress.await(shard, 1 << 30);
}

TEST_CASE("a loader that follows a check reads what was passed, and no byte before") {
  const ScratchDir dir;
  const WholeTensor tensor = whole_tensor("w", DType::f32, {64, 16}, 5);
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  const std::vector<std::byte> values = cut(tensor, whole_box(tensor.shape));
  const std::vector<TensorBox> boxes{
      {tensor.name, tensor.dtype, tensor.shape, whole_box(tensor.shape), values}};
  store.save(1, boxes, small_run(1));
  Loader loader = store.load(1);
  CheckProgress progress;
  loader.follow(progress);
  const Loader::Request rows{"w", DType::f32, tensor.shape, {{8, 0}, {4, 16}}};
  const Loader::Position position = loader.position_of(rows);
  const std::string bytes = slurp(store.directory_of(1) / position.file);
  const std::vector<std::byte> expected = cut(tensor, rows.box);
  REQUIRE(position.offset + expected.size() <= bytes.size());
  CHECK(std::memcmp(bytes.data() + position.offset, expected.data(), expected.size()) == 0);

  progress.begin(position.file);
  progress.pass(position.offset + expected.size() - 1);
  std::vector<std::byte> out(expected.size());
  std::atomic<bool> read = false;
  std::thread reader([&] {
    loader.read_box(rows, out);
    read = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(read);
  progress.pass(position.offset + expected.size());
  reader.join();
  CHECK(out == expected);
}

TEST_CASE("requests have the order of their bytes in the files") {
  const ScratchDir dir;
  const WholeTensor a = whole_tensor("a", DType::f32, {6, 4}, 1),
                    b = whole_tensor("b", DType::f32, {5}, 2);
  CheckpointStore store =
      CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 64});  // several files
  std::vector<TensorBox> boxes;
  const Box upper{{0, 0}, {3, 4}}, lower{{3, 0}, {3, 4}};
  const auto upper_values = cut(a, upper), lower_values = cut(a, lower);
  const auto of_b = cut(b, whole_box(b.shape));
  boxes.push_back({"a", a.dtype, a.shape, upper, upper_values});
  boxes.push_back({"a", a.dtype, a.shape, lower, lower_values});
  boxes.push_back({"b", b.dtype, b.shape, whole_box(b.shape), of_b});
  store.save(1, boxes, small_run(1));
  Loader loader = store.load(1);
  const auto at = [&](const WholeTensor& of, const Box& box) {
    return loader.position_of({of.name, of.dtype, of.shape, box});
  };
  CHECK(at(a, {{1, 0}, {1, 4}}).file == at(a, upper).file);
  CHECK(at(a, {{1, 0}, {1, 4}}).offset == at(a, upper).offset + 16);
  CHECK(at(a, {{1, 2}, {4, 2}}).offset == at(a, upper).offset + 24);  // of both boxes the first
  CHECK(at(a, upper).file != at(b, whole_box(b.shape)).file);
  CHECK(loader.position_of({"c", DType::f32, {1}, whole_box({1})}).file.empty());
}

}  // namespace llmtrain::checkpoint
