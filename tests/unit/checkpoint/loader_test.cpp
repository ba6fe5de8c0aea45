#include "lib/checkpoint/loader.hpp"

#include <set>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/trace.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(philox_key(seed, "test", "loader")) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(
        philox_below(key_, 0, next_++, static_cast<std::uint64_t>(bound)));
  }

 private:
  PhiloxKey key_;
  std::uint64_t next_ = 0;
};

/// A random split of the tensor into boxes, not only a grid.
std::vector<Box> random_split(const Dims& shape, Draws& draws) {
  std::vector<Box> boxes{whole_box(shape)};
  for (std::int64_t splits = draws.below(7); splits-- > 0 && !shape.empty();) {
    Box& low =
        boxes[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(boxes.size())))];
    const auto dim = static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(shape.size())));
    if (low.shape[dim] < 2) continue;
    Box high = low;
    low.shape[dim] = 1 + draws.below(low.shape[dim] - 1);
    high.offset[dim] += low.shape[dim];
    high.shape[dim] -= low.shape[dim];
    boxes.push_back(std::move(high));
  }
  return boxes;
}

/// Saves each tensor in the given split.
void save_split(CheckpointStore& store, std::uint64_t step, const std::vector<WholeTensor>& tensors,
                const std::vector<std::vector<Box>>& splits) {
  std::vector<TensorBox> boxes;
  std::vector<std::vector<std::byte>> values;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const Box& box : splits[t]) {
      values.push_back(cut(tensors[t], box));
      boxes.push_back({tensors[t].name, tensors[t].dtype, tensors[t].shape, box, {}});
    }
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) boxes[i].bytes = values[i];
  store.save(step, boxes, small_run(step));
}

}  // namespace

TEST_CASE("any split reads any other split, 0 to 5 dims, bit for bit") {
  const ScratchDir dir;
  Draws draws(3);
  for (std::uint64_t round = 0; round < 12; ++round) {
    std::vector<WholeTensor> tensors;
    std::vector<std::vector<Box>> splits;
    for (std::size_t dims = 0; dims <= 5; ++dims) {
      Dims shape;
      for (std::size_t d = 0; d < dims; ++d) shape.push_back(1 + draws.below(dims < 3 ? 20 : 5));
      const DType dtype = std::vector{DType::f32, DType::bf16, DType::u8, DType::f64}[round % 4];
      tensors.push_back(whole_tensor("t" + std::to_string(dims), dtype, shape, round));
      splits.push_back(random_split(shape, draws));
    }
    CheckpointStore store = CheckpointStore::open_writer(
        dir.path() / std::to_string(round), {.max_shard_bytes = 1u << (6 + round % 6)});
    save_split(store, round, tensors, splits);
    REQUIRE(store.verify(round, VerifyLevel::hash).empty());

    Loader loader = store.load(round);
    for (const WholeTensor& tensor : tensors) {
      for (int split = 0; split < 4; ++split) {
        for (const Box& box : random_split(tensor.shape, draws)) {
          const std::vector<std::byte> expected = cut(tensor, box);
          std::vector<std::byte> out(expected.size(), std::byte{0xEE});
          loader.read_box({tensor.name, tensor.dtype, tensor.shape, box}, out);
          CHECK(out == expected);
        }
      }
    }
  }
}

TEST_CASE("narrow columns and far rows are read right on both sides of the joining limits") {
  const ScratchDir dir;
  for (const std::int64_t columns : {100, 16384, 40000}) {  // row gaps below and above 64 KiB
    const WholeTensor tensor = whole_tensor("w", DType::f32, {70, columns}, 1);
    CheckpointStore store = CheckpointStore::open_writer(dir.path() / std::to_string(columns));
    save_split(store, 1, {tensor}, {{{{0, 0}, {70, 30}}, {{0, 30}, {70, columns - 30}}}});
    Loader loader = store.load(1);
    for (const Box& box :
         {Box{{0, 29}, {70, 2}}, Box{{3, 0}, {60, columns}}, Box{{69, 50}, {1, 9}}}) {
      const std::vector<std::byte> expected = cut(tensor, box);
      std::vector<std::byte> out(expected.size());
      loader.read_box({"w", DType::f32, tensor.shape, box}, out);
      CHECK(out == expected);
    }
  }
}

TEST_CASE("a tensor cut by row-major ranges, as optimizer shards are, comes back whole") {
  const ScratchDir dir;
  const WholeTensor tensor = whole_tensor("w#exp_avg", DType::f32, {7, 5, 3}, 2);
  std::vector<Box> split;
  for (const auto& [begin, end] : {std::pair{0, 11}, {11, 64}, {64, 105}}) {
    for (Box& box : boxes_of_range(tensor.shape, begin, end)) split.push_back(std::move(box));
  }
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_split(store, 1, {tensor}, {split});
  std::vector<std::byte> out(tensor.bytes.size());
  store.load(1).read_box({tensor.name, tensor.dtype, tensor.shape, whole_box(tensor.shape)}, out);
  CHECK(out == tensor.bytes);
}

TEST_CASE("a trace has a span for what is checked or loaded of each file") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  const WholeTensor tensor = whole_tensor("w", DType::f32, {4, 3}, 1);
  save_split(store, 1, {tensor}, {{whole_box(tensor.shape)}});
  trace::start();
  CHECK(store.verify(1, VerifyLevel::hash).empty());
  std::vector<std::byte> out(tensor.bytes.size());
  store.load(1).read_box({"w", DType::f32, tensor.shape, whole_box(tensor.shape)}, out);
  std::set<std::string> names;
  for (const trace::Span& span : trace::stop()) names.insert(span.name);
  CHECK(names == std::set<std::string>{"load manifest.json", "check shard-0000-0000.safetensors",
                                       "load shard-0000-0000.safetensors"});
}

TEST_CASE("a tensor of another dtype or shape, or of no such name, is refused by name") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  Loader loader = store.load(1);
  std::vector<std::byte> out(64);
  const auto message = [&](const std::string& name, DType dtype, const Dims& shape) -> std::string {
    try {
      loader.read_box({name, dtype, shape, whole_box(shape)}, out);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "";
  };
  const std::string norm = "model.norm.weight";
  CHECK(message(norm, DType::bf16, {8})
            .find("is fp32 [8] in the checkpoint, but this run needs bf16 [8]") !=
        std::string::npos);
  CHECK(message(norm, DType::f32, {16}).find("needs fp32 [16]") != std::string::npos);
  CHECK(message(norm, DType::f32, {8, 1}).find(norm) != std::string::npos);
  CHECK(message("model.norm.bias", DType::f32, {8}).find("model.norm.bias") != std::string::npos);
  CHECK_THROWS_AS(loader.read_box({norm, DType::f32, {8}, {{4}, {5}}}, out), InternalError);
  CHECK_THROWS_AS(loader.read_box({norm, DType::f32, {8}, {{0}, {8}}}, out), InternalError);
}

TEST_CASE("compare lists what is missing and what is unexpected") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  save_small(store, 1);
  std::vector<std::string> expected;
  for (const WholeTensor& tensor : small_state(1)) expected.push_back(tensor.name);
  Loader loader = store.load(1);
  CHECK(loader.compare(expected).missing.empty());
  CHECK(loader.compare(expected).unexpected.empty());
  expected[0] = "new";
  const NameDifference difference = loader.compare(expected);
  CHECK(difference.missing == std::vector<std::string>{"new"});
  CHECK(difference.unexpected == std::vector<std::string>{"model.embed_tokens.weight"});
}

TEST_CASE("more files than a process may have open are read, some of them open at a time") {
  const ScratchDir dir;
  constexpr std::int64_t kFiles = 600;
  const WholeTensor tensor = whole_tensor("rows", DType::f32, {kFiles, 4}, 1);
  std::vector<Box> rows;
  for (std::int64_t row = 0; row < kFiles; ++row) rows.push_back({{row, 0}, {1, 4}});
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.max_shard_bytes = 1});
  save_split(store, 1, {tensor}, {rows});
  const std::size_t before = names_in("/proc/self/fd").size();
  Loader loader = store.load(1);
  REQUIRE(loader.manifest().files.size() == kFiles);
  std::vector<std::byte> out(tensor.bytes.size());
  for (int times = 0; times < 2; ++times) {
    loader.read_box({tensor.name, tensor.dtype, tensor.shape, whole_box(tensor.shape)}, out);
    CHECK(out == tensor.bytes);
    CHECK(names_in("/proc/self/fd").size() <= before + 256);
  }
}

}  // namespace llmtrain::checkpoint
