// Where a copy of a checkpoint's boxes lies in memory, and that it is written from there.
#include "lib/checkpoint/snapshot.hpp"

#include <cstring>
#include <random>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

constexpr std::uint64_t kShardBytes = std::uint64_t{64} << 10;

/// Tensors of many sizes and types, with their bytes.
struct State {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorBox> boxes;

  void add(DType dtype, std::int64_t elements) {
    const std::string name = fmt::format("tensor.{}", boxes.size() * 7919 % 101);
    std::vector<std::byte>& values = bytes.emplace_back(elements * size_of(dtype));
    for (std::byte& value : values) value = static_cast<std::byte>(random_());
    boxes.push_back({.name = name,
                     .dtype = dtype,
                     .global_shape = {elements},
                     .box = {.offset = {0}, .shape = {elements}},
                     .bytes = values,
                     .fetch = {}});
  }

 private:
  std::mt19937 random_{1};
};

State mixed_state() {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::u8};
  State state;
  for (int i = 0; i < 60; ++i) state.add(kTypes[i % 3], i * 577 % 9001 + 1);
  return state;
}

/// The boxes, copied to their places.
std::vector<TensorBox> copy_to(std::span<std::byte> memory, std::vector<TensorBox> boxes) {
  const auto places = place_in_snapshot(boxes, kShardBytes, memory);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    std::memcpy(places[i].data(), boxes[i].bytes.data(), places[i].size());
    boxes[i].bytes = places[i];
  }
  return boxes;
}

std::uint64_t saved_bytes(std::span<const TensorBox> boxes) {
  std::uint64_t bytes = 0;
  for (const TensorBox& box : boxes) bytes += box.size_bytes();
  return bytes;
}

std::vector<ShardHashes> hashes_of(std::span<const TensorBox> boxes) {
  std::vector<ShardHashes> hashes;
  for (const ShardBoxes& file : divide_into_shards(boxes, kShardBytes)) {
    const auto of_file = boxes.subspan(file.begin, file.end - file.begin);
    hashes.push_back(hash_shard(of_file, file.order, kShardBytes));
  }
  return hashes;
}

}  // namespace

TEST_CASE("a snapshot lies as its files, which are those of the boxes themselves") {
  const State state = mixed_state();
  const std::uint64_t saved = saved_bytes(state.boxes);
  const test::TempDir dir;  // of a disk
  std::filesystem::create_directory(dir.path() / "direct");
  const WrittenShards direct =
      write_shards(dir.path() / "direct", state.boxes, {.max_shard_bytes = kShardBytes});
  REQUIRE(direct.files.size() > 5);
  for (const std::size_t begin : {0, 1, 4095}) {
    CAPTURE(begin);
    const std::uint64_t bytes = snapshot_bytes(saved, kShardBytes);
    const BlockMemory memory = make_block_memory(begin + bytes);
    const auto boxes = copy_to({memory.get() + begin, bytes}, state.boxes);
    const auto folder = dir.path() / std::to_string(begin);
    std::filesystem::create_directory(folder);
    WritePace pace(1);
    WritePace* const past_the_cache = begin == 0 ? nullptr : &pace;
    const WrittenShards written =
        write_shards(folder, boxes, {.max_shard_bytes = kShardBytes, .pace = past_the_cache});
    CHECK(written.files == direct.files);
    for (const auto& [name, record] : written.files) {
      const bool is_same = slurp(folder / name) == slurp(dir.path() / "direct" / name);
      CHECK(is_same);
    }
    for (const TensorBox& box : boxes) {
      const StoredBox& record = written.tensors.at(box.name).boxes.front();
      const auto file = SafetensorsFile::open(folder / record.file);
      const auto address = reinterpret_cast<std::uintptr_t>(box.bytes.data());
      CHECK(file.entry(record.name_in_file).offset % File::kDirectBlock ==
            address % File::kDirectBlock);
      CHECK(file.entries().front().offset == File::kDirectBlock);
    }
  }
}

TEST_CASE("hashes made with a snapshot are those of its files, which are not hashed again") {
  const State state = mixed_state();
  std::vector<ShardHashes> hashes = hashes_of(state.boxes);
  const test::TempDir dir;
  const auto write = [&](const char* folder, std::span<const ShardHashes> known) {
    std::filesystem::create_directory(dir.path() / folder);
    return write_shards(dir.path() / folder, state.boxes, {.max_shard_bytes = kShardBytes}, known);
  };
  const WrittenShards expected = write("hashed while written", {});
  REQUIRE(expected.files.size() > 5);
  const WrittenShards written = write("hashed before", hashes);
  CHECK(written.files == expected.files);
  CHECK(written.tensors == expected.tensors);
  hashes.push_back(hashes.front());
  const std::string reason =
      fmt::format("hashes of {} files for {}", hashes.size(), hashes.size() - 1);
  CHECK_THROWS_WITH(write("of other files", hashes), doctest::Contains(reason.c_str()));
  hashes.pop_back();
  hashes.front().boxes.pop_back();
  CHECK_THROWS_WITH(write("of other boxes", hashes), doctest::Contains("hashes of other boxes"));
}

TEST_CASE("a copy that changes before it is on the disk is damage that its hashes find") {
  const State state = mixed_state();
  const std::vector<ShardHashes> hashes = hashes_of(state.boxes);
  const std::uint64_t bytes = snapshot_bytes(saved_bytes(state.boxes), kShardBytes);
  const BlockMemory memory = make_block_memory(bytes);
  const std::vector<TensorBox> copies = copy_to({memory.get(), bytes}, state.boxes);
  *memory.get() ^= std::byte{1};
  const ScratchDir dir;
  const WrittenShards written =
      write_shards(dir.path(), copies, {.max_shard_bytes = kShardBytes}, hashes);
  REQUIRE(written.files.size() == hashes.size());
  for (const auto& [file, record] : written.files) {
    CAPTURE(file);
    const bool is_as_saved = hash128(slurp(dir.path() / file)) == record.xxh3_128;
    CHECK(is_as_saved == (file != "shard-0000-0000.safetensors"));
  }
}

TEST_CASE("a large file is written from the snapshot itself, not from a copy") {
  State state;
  state.add(DType::f32, 1500);  // less than a piece, of which 65,536 bytes have eight
  state.add(DType::f32, 1000);
  for (const bool lies_as_file : {true, false}) {
    CAPTURE(lies_as_file);
    const std::uint64_t bytes = snapshot_bytes(10000, kShardBytes);
    const BlockMemory memory = make_block_memory(bytes);
    auto boxes = copy_to({memory.get(), bytes}, state.boxes);
    if (!lies_as_file) boxes[1].bytes = state.bytes[1];
    const auto damage = [&](std::string_view point) {
      if (point == "shard.write.last") *memory.get() ^= std::byte{1};  // which nobody may
    };
    const ScratchDir dir;
    write_shards(dir.path(), boxes, {.max_shard_bytes = kShardBytes, .failpoint = damage});
    const auto file = SafetensorsFile::open(dir.path() / "shard-0000-0000.safetensors");
    std::byte first{};
    file.read_range(file.entries().front(), 0, {&first, 1});
    CHECK((first == *memory.get()) == lies_as_file);
  }
}

TEST_CASE("a snapshot has room for files of any size, and none for nothing") {
  CHECK(snapshot_bytes(0, kShardBytes) == 0);
  for (const std::uint64_t shard : {1u, 5u, 4096u, 5000u, 1u << 20}) {
    CAPTURE(shard);
    State state;
    for (const int elements : {1, 4999, 4096, 2, 5000, 1, 1, 1, 3}) state.add(DType::u8, elements);
    const std::uint64_t bytes = snapshot_bytes(saved_bytes(state.boxes), shard);
    const BlockMemory memory = make_block_memory(1 + bytes);
    const auto places = place_in_snapshot(state.boxes, shard, {memory.get() + 1, bytes});
    for (const ShardBoxes& file : divide_into_shards(state.boxes, shard)) {
      const auto first =
          reinterpret_cast<std::uintptr_t>(places[file.begin + file.order[0]].data());
      CHECK(first % File::kDirectBlock == 0);
    }
  }
}

}  // namespace llmtrain::checkpoint
