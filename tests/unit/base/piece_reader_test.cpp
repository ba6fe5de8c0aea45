#include "lib/base/piece_reader.hpp"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/random_bytes.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

namespace {

std::filesystem::path file_with(const TempDir& directory, std::string_view bytes) {
  const auto path = directory.path() / "file";
  write_file_atomic(path, bytes);
  return path;
}

constexpr std::size_t kBlock = File::kDirectBlock;

}  // namespace

TEST_CASE("a file read in pieces gives its bytes once and in order, whatever part and piece") {
  const TempDir directory;
  const std::string bytes = random_bytes(7 * kBlock + 13);
  const auto path = file_with(directory, bytes);
  for (const bool past_cache : {false, true}) {
    for (const std::size_t piece : {std::size_t{1000}, kBlock, 3 * kBlock, 100 * kBlock}) {
      for (const auto& [begin, end] : std::vector<std::pair<std::size_t, std::size_t>>{
               {0, bytes.size()}, {0, 6 * kBlock}, {kBlock, 4 * kBlock}, {5, 5}, {17, 9000}}) {
        CAPTURE(past_cache);
        CAPTURE(piece);
        CAPTURE(begin);
        File file = File::open_read(path);
        if (past_cache) file.bypass_cache();
        std::string found;
        read_in_pieces(
            file, begin, end,
            [&](std::span<const std::byte> part) {
              CHECK(part.size() <= piece);
              found.append(reinterpret_cast<const char*>(part.data()), part.size());
            },
            piece);
        const bool same = found == bytes.substr(begin, end - begin);  // which are no text
        CHECK(same);
      }
    }
  }
}

TEST_CASE("a piece stays what it is while the next one is read") {
  const TempDir directory;
  const std::string bytes = random_bytes(4 * kBlock);
  const File file = File::open_read(file_with(directory, bytes));
  std::size_t at = 0;
  const auto use = [&](std::span<const std::byte> part) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool same = std::memcmp(part.data(), bytes.data() + at, part.size()) == 0;
    CHECK(same);
    at += part.size();
  };
  read_in_pieces(file, 0, bytes.size(), use, kBlock);
  CHECK(at == bytes.size());
}

TEST_CASE("a file that ends early is told, after the pieces that are there") {
  const TempDir directory;
  const File file = File::open_read(file_with(directory, random_bytes(3 * kBlock)));
  std::size_t seen = 0;
  CHECK_THROWS_AS(read_in_pieces(
                      file, 0, 5 * kBlock,
                      [&](std::span<const std::byte> part) { seen += part.size(); }, 2 * kBlock),
                  DataError);
  CHECK(seen == 2 * kBlock);
}

TEST_CASE("who looks at pieces may throw while the next is read") {
  const TempDir directory;
  const File file = File::open_read(file_with(directory, random_bytes(9 * kBlock)));
  int seen = 0;
  const auto use = [&](std::span<const std::byte>) {
    if (++seen == 2) throw DataError("enough");
  };
  CHECK_THROWS_WITH_AS(read_in_pieces(file, 0, 9 * kBlock, use, kBlock), "enough", DataError);
  CHECK(seen == 2);
}

}  // namespace llmtrain::test
