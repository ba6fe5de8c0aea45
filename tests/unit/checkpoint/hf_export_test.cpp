// Exports that are read from checkpoints, part by part.
#include <atomic>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lib/checkpoint/hf_directory.hpp"
#include "tests/support/asked_to_stop.hpp"
#include "tests/unit/checkpoint/support.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kRows = 1100, kCols = 1000;  // of "big": more than is read at a time

/// Two matrices that are one in the file, one that lies across, experts, a vector and a big one.
struct Model {
  Model() : mesh({}, 0, self_factory()), parameters(mesh) {
    const auto declare = [&](const std::string& name, Shape shape) {
      parameters.declare(ParameterSpec{.name = name, .shape = std::move(shape)});
    };
    declare("q", {6, 5});
    declare("k", {3, 5});
    declare("across", {4, 7});
    declare("experts", {3, 2, 5});
    declare("bias", {9});
    declare("big", {kRows, kCols});
    layout.tensors = {{.name = "file.qk", .members = {"q", "k"}},
                      {.name = "file.across", .members = {"across"}, .transposed = true},
                      {.name = "file.expert.2", .members = {"experts"}, .expert = 2},
                      {.name = "file.expert.0", .members = {"experts"}, .expert = 0},
                      {.name = "file.expert.1", .members = {"experts"}, .expert = 1},
                      {.name = "file.bias", .members = {"bias"}, .keeps_fp32 = true},
                      {.name = "file.big", .members = {"big"}}};
  }
  HfContent content(DType dtype) const {
    return {.parameters = &parameters,
            .layout = &layout,
            .dtype = dtype,
            .texts = {{"config.json", "{}\n"}, {"tokenizer.json", "{\"a\": 1}\n"}}};
  }

  Mesh mesh;
  ParameterStore parameters;
  HfLayout layout;
};

/// Element `i` of a parameter: exact in bf16.
float value_of(const std::string& name, std::int64_t i) {
  return static_cast<float>((i + 31 * static_cast<std::int64_t>(name.size())) % 251);
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> values_in(const Parameter& p, DType dtype) {
  const std::int64_t n = p.global_shape().numel();
  std::vector<double> wide;
  std::vector<float> floats;
  std::vector<bf16> narrow;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = value_of(p.name(), i);
    if (dtype == DType::f64) wide.push_back(value + 0x1p-40);
    if (dtype == DType::f32) floats.push_back(value);
    if (dtype == DType::bf16) narrow.push_back(to_bf16(value));
  }
  if (dtype == DType::f64) return bytes_of(wide);
  return dtype == DType::f32 ? bytes_of(floats) : bytes_of(narrow);
}

/// Every tensor in four boxes, where it has as many elements: two halves of each of its last two
/// dims.
CheckpointStore save_model(const fs::path& root, const Model& model, DType dtype) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorBox> boxes;
  for (const auto& p : model.parameters.all()) {
    const Dims shape(p->global_shape().dims().begin(), p->global_shape().dims().end());
    const WholeTensor whole{p->name(), dtype, shape, values_in(*p, dtype)};
    std::vector<Box> parts{whole_box(shape)};
    for (std::size_t d = shape.size() > 1 ? shape.size() - 2 : 0; d < shape.size(); ++d) {
      for (std::size_t i = parts.size(); i-- > 0;) {
        Box high = parts[i];
        parts[i].shape[d] /= 2;
        high.offset[d] += parts[i].shape[d];
        high.shape[d] -= parts[i].shape[d];
        parts.push_back(std::move(high));
      }
    }
    for (const Box& box : parts) {
      bytes.push_back(cut(whole, box));
      boxes.push_back({whole.name, dtype, shape, box, {}, {}});
    }
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) boxes[i].bytes = bytes[i];
  CheckpointStore store = CheckpointStore::open_writer(root, {.max_shard_bytes = 1 << 18});
  store.save(1, std::move(boxes), small_run(1));
  return store;
}

template <class T>
std::vector<T> tensor_of(const SafetensorsFile& file, const std::string& name) {
  std::vector<T> values(file.entry(name).bytes / sizeof(T));
  file.read_tensor(name, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

TEST_CASE("an export is read from the parts that a checkpoint has, whatever their type") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    CAPTURE(to_string(dtype));
    const ScratchDir dir;
    const Model model;
    CheckpointStore store = save_model(dir.path() / "run", model, dtype);
    Loader saved = store.load(1);
    export_hf(dir.path() / "hf", model.content(DType::f64), values_of(saved));
    CHECK(slurp(dir.path() / "hf" / "tokenizer.json") == "{\"a\": 1}\n");

    const auto file = SafetensorsFile::open(dir.path() / "hf" / "model.safetensors");
    const double more = dtype == DType::f64 ? 0x1p-40 : 0;
    const auto expect = [&](const std::string& name, std::int64_t i) {
      return static_cast<double>(value_of(name, i)) + more;
    };
    const std::vector<double> qk = tensor_of<double>(file, "file.qk");
    CHECK(file.entry("file.qk").shape == Dims{9, 5});
    for (std::int64_t i = 0; i < 30; ++i) CHECK(qk[static_cast<std::size_t>(i)] == expect("q", i));
    for (std::int64_t i = 0; i < 15; ++i) {
      CHECK(qk[static_cast<std::size_t>(30 + i)] == expect("k", i));
    }
    const std::vector<double> across = tensor_of<double>(file, "file.across");
    CHECK(file.entry("file.across").shape == Dims{7, 4});
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t j = 0; j < 7; ++j) {
        CHECK(across[static_cast<std::size_t>(j * 4 + i)] == expect("across", i * 7 + j));
      }
    }
    for (std::int64_t e = 0; e < 3; ++e) {
      const std::vector<double> expert =
          tensor_of<double>(file, "file.expert." + std::to_string(e));
      for (std::int64_t i = 0; i < 10; ++i) {
        CHECK(expert[static_cast<std::size_t>(i)] == expect("experts", e * 10 + i));
      }
    }
    const std::vector<double> big = tensor_of<double>(file, "file.big");
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      wrong += big[static_cast<std::size_t>(i)] != expect("big", i);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("an export has the bytes that it promises, in the type that is asked for") {
  const ScratchDir dir;
  const Model model;
  CheckpointStore store = save_model(dir.path() / "run", model, DType::f32);
  Loader saved = store.load(1);
  const HfContent content = model.content(DType::bf16);
  fs::create_directory(dir.path() / "hf");
  write_hf(dir.path() / "hf", content, values_of(saved));
  CHECK(names_in(dir.path() / "hf") ==
        std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"});
  const auto file = SafetensorsFile::open(dir.path() / "hf" / "model.safetensors");
  CHECK(file.entry("file.big").type == StoredType::bf16);
  CHECK(file.entry("file.bias").type == StoredType::f32);
  std::uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) bytes += entry.bytes;
  for (const auto& [name, text] : content.texts) bytes += text.size();
  CHECK(hf_bytes(content) == bytes);
}

TEST_CASE("an export that is given up, or of another model, says so") {
  const ScratchDir dir;
  const Model model;
  CheckpointStore store = save_model(dir.path() / "run", model, DType::f32);
  Loader saved = store.load(1);
  std::stop_source stop;
  stop.request_stop();
  fs::create_directory(dir.path() / "hf");
  CHECK(message_of([&] {
          write_hf(dir.path() / "hf", model.content(DType::f32), values_of(saved),
                   {.stop = stop.get_token()});
        }).find("given up") != std::string::npos);

  Model other;
  other.parameters.declare(ParameterSpec{.name = "more", .shape = {2, 2}});
  other.layout.tensors.push_back({.name = "file.more", .members = {"more"}});
  const std::string message = message_of(
      [&] { export_hf(dir.path() / "other", other.content(DType::f32), values_of(saved)); });
  CHECK(message.find("has no tensor 'more'") != std::string::npos);
  CHECK(!fs::exists(dir.path() / "other"));
  CHECK(names_in(dir.path()) == std::set<std::string>{"hf", "run"});
}

TEST_CASE("a save's export is made of all shards before the checkpoint is seen, and goes with it") {
  const ScratchDir dir;
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.keep_last = 2});
  save_small(store, 1);
  std::uint64_t made = 0;
  const auto copy_norm = [&](const fs::path& directory, Loader& saved, const WriteLimits&) {
    ++made;
    CHECK(directory.filename() == kExportName);
    CHECK(names_in(dir.path()).contains("step-0000000" + std::to_string(made + 1)) == false);
    CHECK(!fs::exists(directory.parent_path() / kManifestName));
    std::vector<std::byte> norm(32);
    saved.read_box({"model.norm.weight", DType::f32, {8}, whole_box({8})}, norm);
    spill(directory / "norm", {reinterpret_cast<const char*>(norm.data()), norm.size()});
  };
  store.export_with_saves({.bytes = 32, .write = copy_norm});
  for (const std::uint64_t step : {2u, 3u, 4u}) {
    save_small(store, step);
    const std::vector<std::byte> norm = small_state(step)[3].bytes;
    CHECK(slurp(store.directory_of(step) / "hf" / "norm") ==
          std::string(reinterpret_cast<const char*>(norm.data()), norm.size()));
    CHECK(store.verify(step, VerifyLevel::hash).empty());
  }
  CHECK(store.list() == std::vector<std::uint64_t>{3, 4});
  CHECK(names_in(dir.path()) ==
        std::set<std::string>{"latest", "lock", "step-00000003", "step-00000004"});
}

TEST_CASE("a save whose export fails, or would not fit, leaves nothing") {
  const ScratchDir dir;
  std::uint64_t free_bytes = 1 << 20;
  CheckpointStore store = CheckpointStore::open_writer(
      dir.path(), {.free_bytes = [&](const fs::path&) { return free_bytes; }});
  save_small(store, 1);
  store.export_with_saves({.bytes = 1000, .write = [](const auto& directory, auto&, const auto&) {
                             spill(directory / "half", "of it");
                             throw StorageError("no space left");
                           }});
  const std::string message = message_of([&] { save_small(store, 2); });
  CHECK(message.find("saving step 2 failed: no space left; earlier") != std::string::npos);
  CHECK(names_in(dir.path()) == std::set<std::string>{"latest", "lock", "step-00000001"});

  free_bytes = 2600;  // the state's 1224 bytes, 1000 more, and a fifth of that: 2668
  CHECK(message_of([&] { save_small(store, 2); }).find("needs 2.61 KiB free") != std::string::npos);
  CHECK(names_in(dir.path()) == std::set<std::string>{"latest", "lock", "step-00000001"});
}

TEST_CASE("a request to stop ends the loading of a directory's weights") {
  const ScratchDir dir;
  Model model;
  const CheckpointStore store = save_model(dir.path() / "store", model, DType::f32);
  Loader saved = store.load(1);
  export_hf(dir.path() / "hf", model.content(DType::f32), values_of(saved));
  Device cpu(make_cpu_memory(), 1 << 26);
  model.parameters.allocate(cpu, {}, false);
  CHECK_NOTHROW(import_hf(dir.path() / "hf", model.parameters, model.layout));
  const test::AskedToStop asked;
  CHECK_THROWS_AS(import_hf(dir.path() / "hf", model.parameters, model.layout), Stopped);
}

TEST_CASE(
    "a process that dies in an export leaves earlier checkpoints, and the next one clears up") {
  const ScratchDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    CheckpointStore store = CheckpointStore::open_writer(dir.path());
    save_small(store, 1);
    store.export_with_saves({.bytes = 10, .write = [](const auto& directory, auto&, const auto&) {
                               spill(directory / "half", "of it");
                               ::_exit(9);
                             }});
    save_small(store, 2);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 9);
  CHECK(names_in(dir.path()).size() == 4);  // latest, lock, step 1 and what was being written
  CheckpointStore store = CheckpointStore::open_writer(dir.path());
  CHECK(names_in(dir.path()) == std::set<std::string>{"latest", "lock", "step-00000001"});
  CHECK(store.newest_valid(VerifyLevel::hash).step == 1u);
  CHECK(holds_small(store, 1));
}

TEST_CASE("an export beside a run is held by its limit, and ends when the save is given up") {
  const ScratchDir dir;
  const auto alone = make_self_communicator("writers");
  CheckpointStore store = CheckpointStore::open_writer(dir.path(), {.background_share = 0.5});
  const std::vector<WholeTensor> state = small_state(1);
  std::atomic<bool> is_there = false, held = false;
  store.export_with_saves({.bytes = 1, .write = [&](const auto&, auto&, const WriteLimits& limits) {
                             held = limits.pace != nullptr;
                             is_there = true;
                             while (!limits.stop.stop_requested()) std::this_thread::yield();
                             throw StorageError("given up");
                           }});
  {
    const auto save =
        store.begin(1, whole_boxes(state), small_run(1), *alone, Writing::in_background);
    CHECK_FALSE(save->advance());
    while (!is_there) std::this_thread::yield();
    CHECK_FALSE(save->is_idle());
  }
  CHECK(held);
  CHECK(names_in(dir.path()) == std::set<std::string>{"lock"});
}

}  // namespace llmtrain::checkpoint
