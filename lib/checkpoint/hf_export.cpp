#include <cstring>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/checkpoint/hf_stack.hpp"
#include "lib/checkpoint/hf_values.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The stack's values in the order of the file.
template <class T>
std::vector<T> gather(const ParameterStore& store, const HfStack& stack) {
  std::vector<T> values(static_cast<std::size_t>(stack.out * stack.in));
  std::int64_t row = 0;
  for (const Parameter* p : stack.members) {
    require(p->box().shape == p->global_shape(), "{}: only a part of it is here", p->name());
    const MatrixPart matrix = stack.part_of(*p).value();
    std::vector<std::byte> bytes(static_cast<std::size_t>(matrix.numel()) * sizeof(T));
    store.read_part(*p, matrix.first, bytes);
    const std::byte* next = bytes.data();
    for (const std::int64_t end = row + matrix.rows; row < end; ++row) {
      for (std::int64_t j = 0; j < stack.in; ++j, next += sizeof(T)) {
        std::memcpy(&values[stack.index(row, j)], next, sizeof(T));
      }
    }
  }
  return values;
}

std::vector<std::byte> file_bytes(const ParameterStore& store, const HfStack& stack,
                                  StoredType type) {
  if (stack.members.front()->master_dtype() == DType::f64) {
    const std::vector<double> values = gather<double>(store, stack);
    return encode<double>(type, values);
  }
  const std::vector<float> values = gather<float>(store, stack);
  return encode<float>(type, values);
}

StoredType type_of(const HfStack& stack, StoredType of_file) {
  const bool narrow = of_file == StoredType::f16 || of_file == StoredType::bf16;
  return narrow && stack.tensor->keeps_fp32 ? StoredType::f32 : of_file;
}

void write_weights(const fs::path& path, const ParameterStore& store,
                   const std::vector<HfStack>& stacks, StoredType type) {
  std::vector<TensorSpec> specs;
  for (const HfStack& stack : stacks) {
    specs.push_back({stack.tensor->name, type_of(stack, type), stack.file_shape()});
  }
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (const std::size_t i : file_order(specs)) {
    writer.write(file_bytes(store, stacks[i], specs[i].type));
  }
  writer.sync();
  writer.close();
}

/// A directory that is removed again unless it was renamed.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(fs::path path) : path_(std::move(path)) {
    create_new_directory(path_);
  }
  ~TemporaryDirectory() {
    if (renamed_) return;
    try {
      remove_tree(path_);
    } catch (const Error& error) {
      log::warning("{}", error.what());
    }
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }
  void rename_to(const fs::path& path) {
    rename_path(path_, path);
    renamed_ = true;
  }

 private:
  fs::path path_;
  bool renamed_ = false;
};

}  // namespace

void export_hf(const fs::path& directory, const ParameterStore& store, const HfLayout& layout,
               DType dtype, const std::map<std::string, std::string>& texts) {
  const std::vector<HfStack> stacks = hf_stacks(store, layout);
  // Without a trailing slash, so that its parent and its name are what they seem.
  const fs::path target = fs::absolute(directory / "").parent_path().lexically_normal();
  std::error_code error;
  require<StorageError>(!fs::exists(target, error) || fs::is_empty(target, error),
                        "{}: exists and is not empty; name another directory or remove it",
                        target.string());
  create_directories_durably(target.parent_path());
  TemporaryDirectory temporary(target.parent_path() /
                               fmt::format("{}.tmp-{}", target.filename().string(), make_nonce()));
  write_weights(temporary.path() / "model.safetensors", store, stacks, stored_type(dtype));
  for (const auto& [name, text] : texts) write_file_atomic(temporary.path() / name, text);
  sync_directory(temporary.path());
  temporary.rename_to(target);
  sync_directory(target.parent_path());
}

}  // namespace llmtrain::checkpoint
