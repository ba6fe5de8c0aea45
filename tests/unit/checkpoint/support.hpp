#pragma once
/// Scratch folders and made-up checkpoints for the tests of this folder.

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::checkpoint {

/// A new empty folder, removed at the end of the test; in memory where there is such a file system,
/// since most of the time of a save is waiting for fsync.
class ScratchDir {
 public:
  ScratchDir() {
    const std::filesystem::path memory = "/dev/shm";
    const bool use_memory = ::access(memory.c_str(), W_OK) == 0;
    path_ = (use_memory ? memory : std::filesystem::temp_directory_path()) /
            ("llmtrain-checkpoint-" + make_nonce());
    std::filesystem::create_directories(path_);
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::set<std::string> names_in(const std::filesystem::path& root) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root))
    names.insert(entry.path().filename());
  return names;
}

/// What the action throws says; empty if it throws nothing.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Bytes that depend on the name and on `salt`.
inline std::vector<std::byte> noise(std::size_t size, const std::string& name, std::uint64_t salt) {
  const PhiloxKey key = philox_key(salt, "test", name);
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(philox_word(key, 0, i) & 0xffu);
  }
  return bytes;
}

/// A logical tensor held whole.
struct WholeTensor {
  std::string name;
  DType dtype = DType::f32;
  Dims shape;
  std::vector<std::byte> bytes;
};

inline WholeTensor whole_tensor(std::string name, DType dtype, Dims shape, std::uint64_t salt) {
  const auto size = static_cast<std::size_t>(*num_elements(shape)) * size_of(dtype);
  std::vector<std::byte> bytes = noise(size, name, salt);
  return {std::move(name), dtype, std::move(shape), std::move(bytes)};
}

inline Box whole_box(const Dims& shape) { return {Dims(shape.size(), 0), shape}; }

/// Element by element, so that it shares nothing with the code under test.
inline std::vector<std::byte> cut(const WholeTensor& tensor, const Box& box) {
  const std::size_t element = size_of(tensor.dtype);
  std::vector<std::byte> out;
  const std::int64_t count = *num_elements(box.shape);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (std::size_t d = box.shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= tensor.shape[d];
    }
    const auto at = tensor.bytes.begin() + index * static_cast<std::int64_t>(element);
    out.insert(out.end(), at, at + static_cast<std::int64_t>(element));
  }
  return out;
}

/// A small training state of several dtypes, of which every byte depends on `step`.
inline std::vector<WholeTensor> small_state(std::uint64_t step) {
  return {whole_tensor("model.embed_tokens.weight", DType::f32, {13, 8}, step),
          whole_tensor("model.layers.0.mlp.up_proj.weight", DType::bf16, {16, 8}, step),
          whole_tensor("model.layers.0.mlp.up_proj.weight#exp_avg", DType::f32, {16, 8}, step),
          whole_tensor("model.norm.weight", DType::f32, {8}, step),
          whole_tensor("optimizer.count", DType::i64, {}, step)};
}

inline std::vector<TensorBox> whole_boxes(const std::vector<WholeTensor>& tensors) {
  std::vector<TensorBox> boxes;
  for (const WholeTensor& tensor : tensors) {
    boxes.push_back(
        {tensor.name, tensor.dtype, tensor.shape, whole_box(tensor.shape), tensor.bytes});
  }
  return boxes;
}

inline RunState small_run(std::uint64_t step) {
  return {.tokens_seen = step * 1024,
          .schedule_position = step,
          .rng_seed = 18446744073709551615u,
          .data_cursor = {.epoch = 1, .index = step * 4, .fingerprint = "abc"},
          .state = {{"loss_scale", 65536.0}, {"skipped", std::int64_t{3}}, {"tuned", true}},
          .environment = {{"commit", "0123"}, {"host", "n1"}},
          .recipe = "model:\n  hidden_size: 8\n"};
}

inline void save_small(CheckpointStore& store, std::uint64_t step) {
  const std::vector<WholeTensor> state = small_state(step);
  store.save(step, whole_boxes(state), small_run(step));
}

/// Whether the checkpoint of `step` gives back every byte that save_small put into it.
inline bool holds_small(const CheckpointStore& store, std::uint64_t step) {
  Loader loader = store.load(step);
  if (loader.manifest().run != small_run(step)) return false;
  for (const WholeTensor& tensor : small_state(step)) {
    std::vector<std::byte> out(tensor.bytes.size());
    loader.read_box({tensor.name, tensor.dtype, tensor.shape, whole_box(tensor.shape)}, out);
    if (out != tensor.bytes) return false;
  }
  return true;
}

}  // namespace llmtrain::checkpoint
