#include "lib/offload/value_store.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "lib/offload/value_file_use.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/offload/fault_queue.hpp"

namespace llmtrain::offload {

namespace {

constexpr std::uint64_t kBlock = ValueStore::kBlock;
using Id = ValueStore::Id;

std::vector<std::byte> content(std::uint64_t bytes, std::uint64_t seed) {
  std::vector<std::byte> all(bytes);
  std::mt19937_64 words(seed);
  for (std::byte& byte : all) byte = std::byte(words());
  return all;
}

/// A store whose pool and file are its own, and what it should have.
class Rig {
 public:
  explicit Rig(std::size_t pool_blocks, bool uring = false, bool checksums = true)
      : pool(make_block_memory(pool_blocks * kBlock)) {
    const auto make = [this, uring](int file, unsigned depth) -> std::unique_ptr<DiskQueue> {
      watched.file = file;
      auto inner = uring ? make_uring_queue(file, depth) : nullptr;
      if (!inner) inner = make_thread_queue(file, 4);
      return std::make_unique<FaultQueue>(std::move(inner), watched);
    };
    store.emplace(ScratchFile(directory.path(), kBlock),
                  std::span(pool.get(), pool_blocks * kBlock),
                  StoreOptions{.checksums = checksums, .make_queue = make});
  }

  Id put(std::uint64_t bytes, Id before = 0) {
    ++seed;
    const Id id = store->put(content(bytes, seed), fmt::format("value {}", seed), before);
    values[id] = {bytes, seed};
    return id;
  }
  /// Whether it comes back as it went.
  bool take(Id id) {
    const auto [bytes, seed_of] = values.at(id);
    values.erase(id);
    std::vector<std::byte> got(bytes);
    store->take(id, got);
    return got == content(bytes, seed_of);
  }
  void drop(Id id) {
    store->drop(id);
    values.erase(id);
  }
  /// Whether so many blocks, and no more, are counted soon.
  bool reaches(std::uint64_t StoreTraffic::*counter, std::uint64_t blocks) const {
    for (int i = 0; i < 10'000 && store->traffic().*counter < blocks * kBlock; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return store->traffic().*counter == blocks * kBlock;
  }

  test::TempDir directory;
  Watched watched;
  BlockMemory pool;
  std::uint64_t seed = 0;
  std::map<Id, std::pair<std::uint64_t, std::uint64_t>> values;
  std::optional<ValueStore> store;
};

template <class Body>
std::string failure_of(const Body& body) {
  try {
    body();
  } catch (const StorageError& error) {
    return error.what();
  }
  return "";
}

constexpr std::uint64_t kSizes[] = {1,          4095,           4096,           kBlock - 1, kBlock,
                                    kBlock + 1, 3 * kBlock + 7, 2 * kBlock - 1, 17};

}  // namespace

TEST_CASE("values come back as they went, the last one first, through pools of any size") {
  for (const bool uring : {false, true}) {
    for (const std::size_t pool : {4U, 5U, 16U, 100U}) {
      CAPTURE(uring);
      CAPTURE(pool);
      Rig rig(pool, uring);
      for (int step = 0; step < 3; ++step) {
        std::vector<Id> ids;
        for (int i = 0; i < 30; ++i) ids.push_back(rig.put(kSizes[i % 9], i > 0 ? ids.back() : 0));
        for (std::size_t i = ids.size(); i-- > 0;) CHECK(rig.take(ids[i]));
      }
      CHECK_FALSE(rig.watched.memory_was_shared);
      CHECK(rig.watched.most_under_way <= std::min<std::size_t>(pool, BlockRequests::kDepth));
    }
  }
}

TEST_CASE("and in any order, of several chains, some of them dropped") {
  std::mt19937 chance(5);
  for (const std::size_t pool : {4U, 11U}) {
    Rig rig(pool);
    std::vector<Id> newest(4, 0);
    for (int i = 0; i < 400; ++i) {
      const std::size_t chain = chance() % newest.size();
      if (rig.values.size() < 25 && chance() % 5 < 3) {
        newest[chain] = rig.put(kSizes[chance() % 9], newest[chain]);
      } else if (!rig.values.empty()) {
        const auto at = std::next(rig.values.begin(),
                                  static_cast<std::ptrdiff_t>(chance() % rig.values.size()));
        const Id id = at->first;
        if (chance() % 6 == 0) {
          rig.drop(id);
        } else {
          REQUIRE(rig.take(id));
        }
      }
    }
    while (!rig.values.empty()) REQUIRE(rig.take(rig.values.rbegin()->first));
    CHECK_FALSE(rig.watched.memory_was_shared);
  }
}

TEST_CASE("what fits into the pool is not read again") {
  Rig rig(8);
  std::vector<Id> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(rig.put(kBlock, i > 0 ? ids.back() : 0));
  for (std::size_t i = ids.size(); i-- > 0;) CHECK(rig.take(ids[i]));
  CHECK(rig.store->traffic().read_bytes == 0);
}

TEST_CASE("half a pool of what is taken soon is read ahead, and nothing twice") {
  constexpr std::uint64_t kPool = 8, kValues = 24;
  Rig rig(kPool);
  std::vector<Id> ids;
  for (std::uint64_t i = 0; i < kValues; ++i) {
    ids.push_back(rig.put(kBlock, i > 0 ? ids.back() : 0));
    REQUIRE(rig.reaches(&StoreTraffic::written_bytes, i + 1));
  }
  // The last eight are in the pool still.
  for (std::uint64_t i = kValues; i-- > 0;) {
    CHECK(rig.take(ids[i]));
    const std::uint64_t ahead = i - std::min(i, kPool / 2);  // the first of them
    CHECK(
        rig.reaches(&StoreTraffic::read_bytes, kValues - kPool - std::min(ahead, kValues - kPool)));
  }
}

TEST_CASE("what is read ahead keeps its place until it is taken") {
  Rig rig(4);
  const Id first = rig.put(kBlock);
  const Id second = rig.put(kBlock, first);
  // Only what is written can make place, whichever write ends first.
  REQUIRE(rig.reaches(&StoreTraffic::written_bytes, 2));
  for (int i = 0; i < 4; ++i) rig.put(kBlock);  // takes the place of both
  const Id last = rig.put(kBlock, second);
  REQUIRE(rig.reaches(&StoreTraffic::written_bytes, 7));
  CHECK(rig.take(last));
  REQUIRE(rig.reaches(&StoreTraffic::read_bytes, 2));
  for (int i = 0; i < 4; ++i) rig.put(kBlock);
  CHECK(rig.take(second));
  CHECK(rig.take(first));
  CHECK(rig.reaches(&StoreTraffic::read_bytes, 2));
}

TEST_CASE("who is ahead of the disk waits until there is room") {
  constexpr int kPool = 4, kValues = 12;
  Rig rig(kPool);
  std::atomic<bool> disk_writes = false;
  rig.watched.judge_by([&](DiskRequest& request, std::size_t) -> std::optional<std::int64_t> {
    if (!request.is_write || disk_writes) return std::nullopt;
    std::this_thread::yield();
    return -EAGAIN;
  });
  std::atomic<int> put = 0;
  std::vector<Id> ids;
  std::thread writer([&] {
    for (; put < kValues; ++put) ids.push_back(rig.put(kBlock));
  });
  for (int i = 0; i < 10'000 && put < kPool; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(put == kPool);
  disk_writes = true;
  writer.join();
  CHECK(rig.store->traffic().waited_seconds > 0);
  for (const Id id : ids) CHECK(rig.take(id));
}

TEST_CASE("the file has the places of what is gone") {
  Rig rig(4);
  std::vector<Id> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(rig.put(kBlock));
  for (int i = 0; i < 2000; ++i) {
    CHECK(rig.take(ids.back()));
    ids.back() = rig.put(kBlock);
  }
  CHECK(::lseek(rig.watched.file, 0, SEEK_END) <= static_cast<off_t>(64 * kBlock));
  for (const Id id : ids) CHECK(rig.take(id));
}

TEST_CASE("requests of values that are interrupted, or done in part, are made again") {
  Rig rig(5);
  rig.watched.judge_by([](DiskRequest& request, std::size_t n) -> std::optional<std::int64_t> {
    if (n % 3 == 0) return -EINTR;
    if (n % 5 == 0) return -EAGAIN;
    if (request.memory.size() > 4096) request.memory = request.memory.first(4096);
    return std::nullopt;
  });
  std::vector<Id> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(rig.put(kSizes[i % 9], i > 0 ? ids.back() : 0));
  for (std::size_t i = ids.size(); i-- > 0;) CHECK(rig.take(ids[i]));
}

TEST_CASE("an error of the disk, or a value that it has changed, ends all that comes") {
  for (const bool is_write : {false, true}) {
    Rig rig(4);
    rig.watched.judge_by([&](DiskRequest& request, std::size_t n) -> std::optional<std::int64_t> {
      return request.is_write == is_write && n > 3 ? std::optional<std::int64_t>(-EIO)
                                                   : std::nullopt;
    });
    const std::string text = failure_of([&] {
      std::vector<Id> ids;
      for (int i = 0; i < 12; ++i) ids.push_back(rig.put(kBlock, i > 0 ? ids.back() : 0));
      for (std::size_t i = ids.size(); i-- > 0;) rig.take(ids[i]);
    });
    CHECK(text.find(is_write ? "cannot write at byte" : "cannot read at byte") !=
          std::string::npos);
    CHECK(text.find(rig.directory.path().string()) == 0);
    CHECK(failure_of([&] { rig.put(1); }) == text);
  }
  for (const bool checksums : {true, false}) {
    Rig rig(4, false, checksums);
    std::vector<Id> ids;
    ids.push_back(rig.put(kBlock));
    REQUIRE(rig.reaches(&StoreTraffic::written_bytes, 1));
    for (int i = 1; i < 12; ++i) ids.push_back(rig.put(kBlock));
    // The first one is in the file alone by now.
    const BlockMemory block = make_block_memory(4096);
    REQUIRE(::pread(rig.watched.file, block.get(), 4096, 0) == 4096);
    block[99] ^= std::byte{4};
    REQUIRE(::pwrite(rig.watched.file, block.get(), 4096, 0) == 4096);
    bool as_it_went = true;
    const std::string text = failure_of([&] { as_it_went = rig.take(ids[0]); });
    CHECK(as_it_went == checksums);  // with them it throws
    CHECK((text.find("has changed value 1") != std::string::npos) == checksums);
  }
}

TEST_CASE("a file has room for values that the step before has left to a slow disk") {
  constexpr std::uint64_t kBlock = ValueStore::kBlock;
  ValueFileUse use;
  for (int value = 0; value < 3; ++value) {  // one after the other, all of them one step
    use.put(2 * kBlock - 1);
    use.gone(2 * kBlock - 1);
  }
  CHECK(use.put_bytes() == 3 * (2 * kBlock - 1));
  CHECK(use.most_file_bytes(4 * kBlock) == (2 + 4) * kBlock);
  CHECK(use.most_file_bytes(100 * kBlock) == (2 + 6) * kBlock);  // nothing else was ever put away
}

}  // namespace llmtrain::offload
