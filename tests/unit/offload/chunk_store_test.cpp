#include "lib/offload/chunk_store.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/offload/fault_queue.hpp"

namespace llmtrain::offload {

namespace {

constexpr std::uint64_t kUnit = ScratchFile::kAlignment;

struct Form {
  std::vector<std::uint64_t> units;  // of chunks
  std::uint64_t pool = 0;            // units
};
// Chunks of one block and of several, pools of two chunks and of all, one that a chunk fills.
const Form kForms[] = {{{3, 5, 2, 700, 1, 4, 300}, 1024},
                       {{1, 1, 1, 1, 1, 1}, 2},
                       {{4, 4, 4}, 16},
                       {{8, 3, 8, 1}, 8},
                       {{5}, 5}};

std::vector<Chunk> chunks_of(const Form& form) {
  std::vector<Chunk> chunks;
  std::uint64_t file = 0, pool = 0;
  for (const std::uint64_t units : form.units) {
    if (pool + units > form.pool) pool = 0;
    chunks.push_back(
        {.file_offset = file * kUnit, .pool_offset = pool * kUnit, .bytes = units * kUnit});
    file += units;
    pool += units;
  }
  return chunks;
}

enum class Queue : std::uint8_t { uring, threads };

/// A store whose pool and file are its own.
class Rig {
 public:
  explicit Rig(const Form& form, Queue queue = Queue::threads, bool checksums = true)
      : chunks(chunks_of(form)), pool(make_block_memory(form.pool * kUnit)) {
    const std::uint64_t bytes = chunks.back().file_offset + chunks.back().bytes;
    const auto name = [](std::size_t chunk, std::uint64_t begin, std::uint64_t end) {
      return fmt::format("chunk {} [{}, {})", chunk, begin, end);
    };
    const auto make = [this, queue](int file, unsigned depth) -> std::unique_ptr<DiskQueue> {
      watched.file = file;
      auto inner =
          queue == Queue::uring ? make_uring_queue(file, depth) : make_thread_queue(file, 4);
      REQUIRE(inner != nullptr);
      return std::make_unique<FaultQueue>(std::move(inner), watched);
    };
    store =
        std::make_unique<ChunkStore>(ScratchFile(directory.path(), bytes), chunks, pool.get(), name,
                                     StoreOptions{.checksums = checksums, .make_queue = make});
  }

  /// All of chunk c, byte i, becomes c + i; then each pass adds one.
  void fill() {
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const auto memory = store->acquire_fresh(c);
      for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = std::byte(c + i);
      store->release(c);
    }
  }
  void pass() {
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (std::byte& byte : store->acquire(c)) byte = std::byte(std::to_integer<int>(byte) + 1);
      store->release(c);
    }
  }
  bool holds(int passes) {
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      std::vector<std::byte> bytes(chunks[c].bytes);
      store->read(c, 0, bytes);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != std::byte(c + i + static_cast<std::size_t>(passes))) return false;
      }
    }
    return true;
  }

  test::TempDir directory;
  Watched watched;
  std::vector<Chunk> chunks;
  BlockMemory pool;
  std::unique_ptr<ChunkStore> store;
};

std::vector<Queue> queues() {
  const test::TempDir directory;
  const ScratchFile file(directory.path(), kUnit);
  std::vector<Queue> all{Queue::threads};
  if (make_uring_queue(file.descriptor(), 4)) all.push_back(Queue::uring);
  return all;
}

/// What a store says that cannot go on.
template <class Body>
std::string failure_of(const Body& body) {
  try {
    body();
  } catch (const StorageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("chunks come and go in their order, whatever shares their memory") {
  for (const Queue queue : queues()) {
    for (const Form& form : kForms) {
      CAPTURE(static_cast<int>(queue));
      CAPTURE(form.pool);
      Rig rig(form, queue);
      rig.fill();
      CHECK(rig.holds(0));
      for (int p = 0; p < 5; ++p) rig.pass();
      CHECK(rig.holds(5));
      rig.pass();
      CHECK(rig.holds(6));
      CHECK_FALSE(rig.watched.memory_was_shared);
      CHECK(rig.watched.most_under_way <= BlockRequests::kDepth);
      const std::uint64_t bytes = rig.chunks.back().file_offset + rig.chunks.back().bytes;
      CHECK(rig.store->traffic().written_bytes == 7 * bytes);
      CHECK(rig.store->traffic().read_bytes >= 6 * bytes);
    }
  }
}

TEST_CASE("io_uring is used where the system has it, and threads where it is refused") {
  const test::TempDir directory;
  const ScratchFile file(directory.path(), kUnit);
  io_uring_params parameters{};
  const long ring = ::syscall(SYS_io_uring_setup, 4, &parameters);
  const bool has_uring = ring >= 0;
  if (has_uring) ::close(static_cast<int>(ring));
  CHECK(make_disk_queue(file.descriptor(), 4)->name() ==
        (has_uring ? "io_uring" : "pread and pwrite"));
  ::setenv("LLMTRAIN_IO_URING", "off", 1);
  CHECK(make_disk_queue(file.descriptor(), 4)->name() == "pread and pwrite");
  ::unsetenv("LLMTRAIN_IO_URING");
}

TEST_CASE("who is ahead of the disk waits: a chunk is read when its memory is written") {
  Rig rig({{2, 2, 2, 2, 2, 2, 2, 2}, 4});
  rig.fill();
  // Reads are late, so that whoever began one too early would see other bytes there.
  rig.watched.judge_by([](DiskRequest& request, std::size_t) -> std::optional<std::int64_t> {
    if (!request.is_write) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return std::nullopt;
  });
  for (int p = 0; p < 3; ++p) rig.pass();
  CHECK(rig.holds(3));
  CHECK_FALSE(rig.watched.memory_was_shared);
  CHECK(rig.watched.most_under_way <= 2);  // a block each of the two chunks for which there is room
  CHECK(rig.store->traffic().waited_seconds > 0.01);
}

TEST_CASE("requests that are interrupted, or done in part, are made again") {
  for (const Queue queue : queues()) {
    Rig rig(kForms[0], queue);
    rig.fill();
    rig.watched.judge_by([](DiskRequest& request, std::size_t n) -> std::optional<std::int64_t> {
      if (n % 3 == 0) return -EINTR;
      if (n % 5 == 0) return -EAGAIN;
      if (request.memory.size() > kUnit) request.memory = request.memory.first(kUnit);
      return std::nullopt;
    });
    rig.pass();
    rig.pass();
    CHECK(rig.holds(2));
  }
}

TEST_CASE("where the page cache cannot be passed by, blocks go through it") {
  for (const int reason : {EINVAL, EFAULT}) {
    CAPTURE(reason);
    Rig rig(kForms[0]);
    rig.fill();
    rig.watched.judge_by([&](DiskRequest&, std::size_t) -> std::optional<std::int64_t> {
      const bool bypasses = (::fcntl(rig.watched.file, F_GETFL) & O_DIRECT) != 0;
      return bypasses ? std::optional<std::int64_t>(-reason) : std::nullopt;
    });
    rig.pass();
    CHECK(rig.holds(1));
    CHECK(rig.store->how() == "by pread and pwrite, through the page cache");
  }
}

TEST_CASE("an error of the disk ends all that comes, and names the file") {
  struct Fault {
    bool is_write;
    std::int64_t result;
    std::string says;
  };
  for (const Fault& fault :
       {Fault{false, -EIO, "cannot read at byte"}, Fault{true, -EIO, "cannot write at byte"},
        Fault{false, 0, "the file ends there"},
        Fault{true, -ENOSPC, "choose another offload.path"}}) {
    CAPTURE(fault.says);
    Rig rig(kForms[0]);
    rig.fill();
    rig.pass();
    rig.watched.judge_by([&](DiskRequest& request, std::size_t) -> std::optional<std::int64_t> {
      const bool hit = request.is_write == fault.is_write && request.offset > 5 * kUnit;
      return hit ? std::optional(fault.result) : std::nullopt;
    });
    const std::string text = failure_of([&] {
      rig.pass();
      rig.holds(2);
    });
    CHECK(text.find(fault.says) != std::string::npos);
    CHECK(text.find(rig.directory.path().string()) == 0);
    rig.watched.judge_by([](DiskRequest&, std::size_t) { return std::nullopt; });
    std::vector<std::byte> bytes(kUnit);
    CHECK(failure_of([&] { rig.store->acquire(0); }) == text);
    CHECK(failure_of([&] { rig.store->read(0, 0, bytes); }) == text);
    CHECK(failure_of([&] { rig.store->write(0, 0, bytes); }) == text);
  }
}

TEST_CASE("what the disk has changed is found when it is read, with its block and what it is") {
  for (const bool checksums : {true, false}) {
    Rig rig(kForms[0], Queue::threads, checksums);
    rig.fill();
    CHECK(rig.holds(0));
    const std::uint64_t at = rig.chunks[3].file_offset + ChunkStore::kBlock + 17;
    const auto spoil = [&] {
      const BlockMemory block = make_block_memory(kUnit);
      const auto offset = static_cast<off_t>(at / kUnit * kUnit);
      REQUIRE(::pread(rig.watched.file, block.get(), kUnit, offset) == kUnit);
      block[at % kUnit] ^= std::byte{4};
      REQUIRE(::pwrite(rig.watched.file, block.get(), kUnit, offset) == kUnit);
    };
    spoil();
    std::vector<std::byte> byte(1);
    const std::string outside =
        failure_of([&] { rig.store->read(3, ChunkStore::kBlock + 17, byte); });
    const std::string inside = failure_of([&] { rig.pass(); });
    if (!checksums) {
      CHECK(outside.empty());
      CHECK(inside.empty());
      continue;
    }
    CHECK(outside.find(fmt::format("bytes {} to {} are not", at - 17,
                                   at - 17 + ChunkStore::kBlock)) != std::string::npos);
    CHECK(outside.find("has changed chunk 3 [1048576, 2097152)") != std::string::npos);
    CHECK(inside == outside);
  }
}

TEST_CASE("what is written between passes is read by the next one, though it was read ahead") {
  Rig rig(kForms[2]);
  rig.fill();
  rig.pass();
  // The next pass's chunks are in memory by now.
  std::vector<std::byte> bytes(3 * kUnit);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7);
  rig.store->write(1, 100, bytes);
  std::vector<std::byte> read(bytes.size());
  rig.store->read(1, 100, read);
  CHECK(read == bytes);
  rig.pass();
  rig.store->read(1, 100, read);
  for (std::byte& byte : bytes) byte = std::byte(std::to_integer<int>(byte) + 1);
  CHECK(read == bytes);
}

TEST_CASE("reads that follow one another read a block once, and others as it is now") {
  Rig rig({{256, 256, 256}, 512}, Queue::threads, false);
  rig.fill();
  ChunkStore::LastBlock last;
  std::vector<std::byte> first(10), second(10), elsewhere(10);
  rig.store->read(1, 100, first, last);
  rig.store->write(1, 0,
                   std::vector<std::byte>(kUnit, std::byte{99}));  // which no such reads allow
  rig.store->read(1, 105, second, last);
  CHECK(std::equal(first.begin() + 5, first.end(), second.begin()));
  rig.store->read(2, 100, elsewhere, last);
  CHECK(elsewhere[0] == std::byte(102));
  rig.store->read(1, 105, second, last);
  CHECK(second[0] == std::byte{99});
  // Over the end of a block, of which the last one stays.
  std::vector<std::byte> both(ChunkStore::kBlock);
  rig.store->read(2, 0, both, last);
  CHECK(both.back() == std::byte(2 + ChunkStore::kBlock - 1));
}

TEST_CASE("several threads write parts of one block") {
  Rig rig({{256, 256, 256}, 512});
  rig.fill();
  constexpr int kThreads = 8;
  constexpr std::uint64_t kPart = 100'003;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&rig, t] {
      const std::vector<std::byte> part(kPart, std::byte(t));
      rig.store->write(1, static_cast<std::uint64_t>(t) * kPart, part);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::byte> all(kThreads * kPart);
  rig.store->read(1, 0, all);
  for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == std::byte(i / kPart));
}

TEST_CASE("nothing is left of a scratch file, and names that a kill has left go") {
  const test::TempDir directory;
  const auto inside = directory / "a";
  const auto names = [&] {
    return std::distance(std::filesystem::directory_iterator(inside),
                         std::filesystem::directory_iterator());
  };
  {
    ScratchFile file(inside, kUnit);
    CHECK(names() == 0);
  }
  CHECK(names() == 0);
  const File left = File::create_new(inside / ".unnamed-3f2a77");
  const File other = File::create_new(inside / "weights");
  const ScratchFile file(inside, kUnit);
  CHECK(names() == 1);
  CHECK(std::filesystem::exists(inside / "weights"));
}

TEST_CASE("a file grows by as much as the disk has, and keeps what it has") {
  const test::TempDir directory;
  ScratchFile file(directory.path(), kUnit);
  const BlockMemory memory = make_block_memory(kUnit);
  memory[0] = std::byte{1};
  file.write(0, {memory.get(), kUnit});
  CHECK(file.grow(kUnit, std::uint64_t{1} << 61) == kUnit);  // which it has
  CHECK(file.grow(2 * kUnit, 3 * kUnit) == 3 * kUnit);
  CHECK(file.grow(4 * kUnit, std::uint64_t{1} << 61) == 4 * kUnit);
  struct ::stat info {};
  REQUIRE(::fstat(file.descriptor(), &info) == 0);
  CHECK(info.st_size == 4 * kUnit);
  CHECK(info.st_blocks * 512 >= 4 * static_cast<std::int64_t>(kUnit));
  const std::string text =
      failure_of([&] { file.grow(std::uint64_t{1} << 61, std::uint64_t{1} << 61); });
  CHECK(text.find("cannot take 2305843009213693952 bytes of disk") != std::string::npos);
  file.read(0, {memory.get(), kUnit});
  CHECK(memory[0] == std::byte{1});
}

TEST_CASE("a disk that has no room for the file says so at once") {
  const test::TempDir directory;
  const std::string text =
      failure_of([&] { const ScratchFile file(directory.path(), std::uint64_t{1} << 61); });
  CHECK(text.find(directory.path().string()) == 0);
  CHECK(text.find("cannot take 2305843009213693952 bytes of disk") != std::string::npos);
}

}  // namespace llmtrain::offload
