#include "lib/base/piece_writer.hpp"

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/activity.hpp"
#include "lib/base/error.hpp"
#include "lib/base/piece_reader.hpp"
#include "tests/support/random_bytes.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

TEST_CASE("a file written in pieces has its bytes, whatever their number and portions") {
  const TempDir directory;
  constexpr std::size_t kBlock = File::kDirectBlock;
  int number = 0;
  for (const std::size_t piece :
       {std::size_t{0}, std::size_t{1}, kBlock, 2 * kBlock, 5 * kBlock + 1}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBlock - 1, kBlock, kBlock + 1,
                                   6 * kBlock, 6 * kBlock + 512, 13 * kBlock + 4095}) {
      for (const std::size_t portion : {std::size_t{97}, kBlock, std::size_t{1} << 20}) {
        for (const bool past_cache : {true, false}) {
          CAPTURE(past_cache);
          CAPTURE(piece);
          CAPTURE(size);
          CAPTURE(portion);
          const auto path = directory.path() / std::to_string(number++);
          const std::string bytes = random_bytes(size);
          PieceWriter writer(path, {.bytes = piece, .past_cache = past_cache});
          for (std::size_t at = 0; at < size; at += portion) {
            writer.write(std::string_view(bytes).substr(at, portion));
          }
          writer.sync();
          writer.close();
          const bool same = read_file(path) == bytes;  // which are no text
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("bytes that are kept where they are come out in order, wherever they lie") {
  const TempDir directory;
  constexpr std::size_t kBlock = File::kDirectBlock, kSize = 13 * kBlock + 4095;
  const BlockMemory memory = make_block_memory(kSize + kBlock);
  std::mt19937 random(1);
  for (int number = 0; number < 400; ++number) {
    CAPTURE(number);
    const std::string bytes = random_bytes(kSize - number);
    // At a block's beginning, just before one, and anywhere; half of them as in the file.
    const std::size_t shift =
        std::array<std::size_t, 3>{0, kBlock - 8, random() % kBlock}[number % 3];
    const std::size_t head = number % 2 == 0 ? kBlock + shift : random() % (3 * kBlock);
    std::memcpy(memory.get() + shift, bytes.data() + head, bytes.size() - head);
    const auto path = directory.path() / std::to_string(number);
    const std::size_t piece = std::array{0, 1, 2, 5}[random() % 4] * kBlock;
    PieceWriter writer(path, {.bytes = piece, .past_cache = random() % 2 == 0});
    writer.write(std::string_view(bytes).substr(0, head));
    for (std::size_t at = head; at < bytes.size();) {
      const std::size_t portion = std::min<std::size_t>(random() % (2 * kBlock), bytes.size() - at);
      if (random() % 8 == 0) {  // in between, of other memory
        writer.write(std::string_view(bytes).substr(at, portion));
      } else {
        writer.write_kept({memory.get() + shift + at - head, portion});
      }
      at += portion;
    }
    writer.sync();
    writer.close();
    const bool same = read_file(path) == bytes;  // which are no text
    CHECK(same);
  }
}

TEST_CASE("bytes that are kept are written from where they are if they lie there as in the file") {
  const TempDir directory;
  constexpr std::size_t kBlock = File::kDirectBlock;
  const BlockMemory memory = make_block_memory(3 * kBlock);
  for (const std::size_t shift : {std::size_t{0}, std::size_t{8}}) {
    CAPTURE(shift);
    std::memset(memory.get(), 'a', 3 * kBlock);
    const auto path = directory.path() / std::to_string(shift);
    PieceWriter writer(path, {.bytes = 4 * kBlock});
    writer.write(std::string(kBlock, 'h'));
    writer.write_kept({memory.get() + shift, 2 * kBlock});
    std::memset(memory.get(), 'b', 3 * kBlock);  // which nobody may
    writer.sync();
    writer.close();
    const char expected = shift == 0 ? 'b' : 'a';
    CHECK(read_file(path) == std::string(kBlock, 'h') + std::string(2 * kBlock, expected));
  }
}

TEST_CASE("a file that bypasses the page cache leaves it for what is no whole block") {
  const TempDir directory;
  const auto path = directory.path() / "file";
  alignas(File::kDirectBlock) static std::byte blocks[3 * File::kDirectBlock];
  std::string bytes = random_bytes(sizeof blocks);
  std::memcpy(blocks, bytes.data(), sizeof blocks);
  File file = File::create_new(path);
  file.bypass_cache();
  const std::span<const std::byte> all(blocks);
  file.write(all.first(File::kDirectBlock));
  file.write(all.subspan(File::kDirectBlock, 5));        // too few bytes
  file.write(all.subspan(File::kDirectBlock + 5, 100));  // from anywhere
  file.write(all.subspan(File::kDirectBlock + 105));
  file.write(all.first(1));
  file.bypass_cache();
  file.write(all.first(File::kDirectBlock));  // to the middle of a block of the file
  file.sync();
  file.close();
  bytes += bytes.substr(0, 1) + bytes.substr(0, File::kDirectBlock);
  const bool same = read_file(path) == bytes;  // which are no text
  CHECK(same);
}

TEST_CASE("a file system that knows no way past its cache gets the bytes through it") {
  const std::filesystem::path path = "/dev/shm/llmtrain-piece-writer-" + std::to_string(::getpid());
  const std::string bytes = random_bytes(3 * File::kDirectBlock + 7);
  PieceWriter writer(path, {.bytes = File::kDirectBlock});
  writer.write(bytes);
  writer.sync();
  writer.close();
  const std::string found = read_file(path);
  std::filesystem::remove(path);
  const bool same = found == bytes;
  CHECK(same);
}

TEST_CASE("memory that the disk cannot reach is written through the page cache") {
  // A page of the kernel's that each process has, as pinned memory of some drivers is.
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t begin = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("[vvar]")) begin = std::stoull(line, nullptr, 16);
  }
  REQUIRE(begin != 0);
  const std::span page(reinterpret_cast<const std::byte*>(begin), File::kDirectBlock);
  const TempDir directory;
  File file = File::create_new(directory.path() / "file");
  file.bypass_cache();
  CHECK_NOTHROW(file.write(page));
  file.write("end");
  file.close();
  CHECK(std::filesystem::file_size(directory.path() / "file") == File::kDirectBlock + 3);
}

TEST_CASE("a piece writer that is asked to stop writes no further piece") {
  const TempDir directory;
  constexpr std::size_t kBlock = File::kDirectBlock;
  const BlockMemory memory = make_block_memory(8 * kBlock);
  std::stop_source stop;
  PieceWriter writer(directory.path() / "file", {.bytes = kBlock, .stop = stop.get_token()});
  stop.request_stop();
  writer.write_kept({memory.get(), 8 * kBlock});
  CHECK_THROWS_AS(writer.sync(), StorageError);
  CHECK(std::filesystem::file_size(directory.path() / "file") == 0);
}

TEST_CASE("a piece writer tells what a write met, at the latest when all is to be on the disk") {
  const TempDir directory;
  const auto path = directory.path() / "limited";
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 4 * File::kDirectBlock, .rlim_max = before.rlim_max};
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  PieceWriter writer(path, {.bytes = File::kDirectBlock});
  const std::string bytes = random_bytes(4 * File::kDirectBlock);
  writer.write(bytes);
  writer.write("x");
  CHECK_THROWS_AS(writer.sync(), StorageError);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
}

TEST_CASE("who writes a piece tells it before the next one is written") {
  const TempDir directory;
  const auto path = directory.path() / "file";
  std::vector<std::uintmax_t> sizes;  // of the file, when each piece is there
  Pieces pieces{.bytes = File::kDirectBlock};
  pieces.written = [&](std::chrono::steady_clock::duration took) {
    CHECK(took.count() >= 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    sizes.push_back(std::filesystem::file_size(path));
  };
  PieceWriter writer(path, pieces);
  writer.write(random_bytes(2 * File::kDirectBlock + 7));
  writer.sync();
  CHECK(sizes == std::vector<std::uintmax_t>{File::kDirectBlock, 2 * File::kDirectBlock,
                                             2 * File::kDirectBlock + 7});
}

TEST_CASE("what is written and read in pieces counts where the thread does whose file it is") {
  const TempDir directory;
  const auto path = directory.path() / "file";
  const std::uint64_t before = activity::ticks();
  activity::Ticks own{0};
  std::thread([&] {
    const activity::CountedThread counted(&own);
    PieceWriter writer(path, {.bytes = File::kDirectBlock, .past_cache = false});
    writer.write(random_bytes(9 * File::kDirectBlock));
    writer.sync();
    writer.close();
    const std::uint64_t written = own;
    CHECK(written >= 9);
    read_in_pieces(
        File::open_read(path), 0, 9 * File::kDirectBlock, [](auto) {}, File::kDirectBlock);
    CHECK(own >= written + 9);
  }).join();
  CHECK(activity::ticks() == before);
}

TEST_CASE("a piece writer never writes over a file") {
  const TempDir directory;
  const auto path = directory.path() / "there";
  std::ofstream(path) << "x";
  CHECK_THROWS_AS(PieceWriter{path}, StorageError);
  CHECK(read_file(path) == "x");
}

}  // namespace llmtrain::test
