#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/checkpoint/hf_stack.hpp"
#include "lib/checkpoint/hf_values.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Elements that are read, rounded and written at a time.
constexpr std::int64_t kPieceElements = 1 << 20;

MatrixPart matrix_of(const HfStack& stack, const Parameter& p) {
  require(p.box().shape == p.global_shape(), "{}: only a part of it is here", p.name());
  return stack.part_of(p).value();
}

/// Writes the tensors of a file, one after the other.
class TensorWriter {
 public:
  TensorWriter(SafetensorsWriter& file, const ParameterValues& values, const WriteLimits& limits)
      : file_(file), values_(values), limits_(limits) {}

  void write(const HfStack& stack, StoredType type) {
    if (values_.dtype(*stack.members.front()) == DType::f64) {
      write_as<double>(stack, type);
    } else {
      write_as<float>(stack, type);
    }
  }

 private:
  template <class T>
  void write_as(const HfStack& stack, StoredType type) {
    if (stack.tensor->transposed) return put<T>(gather<T>(stack), type);
    std::vector<T> piece;
    for (const Parameter* p : stack.members) {
      const MatrixPart matrix = matrix_of(stack, *p);
      const std::int64_t end = matrix.first + matrix.numel();
      for (std::int64_t first = matrix.first; first < end; first += kPieceElements) {
        piece.resize(static_cast<std::size_t>(std::min(kPieceElements, end - first)));
        values_.read(*p, first, std::as_writable_bytes(std::span(piece)));
        put<T>(piece, type);
      }
    }
  }

  /// The stack's values in the order of the file.
  template <class T>
  std::vector<T> gather(const HfStack& stack) {
    std::vector<T> values(static_cast<std::size_t>(stack.out * stack.in));
    std::int64_t row = 0;
    for (const Parameter* p : stack.members) {
      const MatrixPart matrix = matrix_of(stack, *p);
      std::vector<T> own(static_cast<std::size_t>(matrix.numel()));
      values_.read(*p, matrix.first, std::as_writable_bytes(std::span(own)));
      const T* next = own.data();
      for (const std::int64_t end = row + matrix.rows; row < end; ++row) {
        for (std::int64_t j = 0; j < stack.in; ++j) values[stack.index(row, j)] = *next++;
      }
    }
    return values;
  }

  template <class T>
  void put(std::span<const T> values, StoredType type) {
    while (!values.empty()) {
      require<StorageError>(!limits_.stop.stop_requested(), "the save was given up");
      const auto count = std::min(values.size(), static_cast<std::size_t>(kPieceElements));
      const std::vector<std::byte> bytes = encode<T>(type, values.first(count));
      file_.write(bytes);
      values = values.subspan(count);
    }
  }

  SafetensorsWriter& file_;
  const ParameterValues& values_;
  const WriteLimits& limits_;
};

StoredType type_of(const HfStack& stack, StoredType of_file) {
  const bool narrow = of_file == StoredType::f16 || of_file == StoredType::bf16;
  return narrow && stack.tensor->keeps_fp32 ? StoredType::f32 : of_file;
}

std::vector<TensorSpec> specs_of(const std::vector<HfStack>& stacks, DType dtype) {
  std::vector<TensorSpec> specs;
  for (const HfStack& stack : stacks) {
    specs.push_back({stack.tensor->name, type_of(stack, stored_type(dtype)), stack.file_shape()});
  }
  return specs;
}

std::uint64_t data_bytes(const std::vector<TensorSpec>& specs) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    bytes += static_cast<std::uint64_t>(num_elements(spec.shape).value()) * size_of(spec.type);
  }
  return bytes;
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

ParameterValues values_of(Loader& saved) {
  const auto stored = [&saved](const Parameter& p) {
    const auto at = saved.manifest().tensors.find(p.name());
    return at == saved.manifest().tensors.end() ? DType::f32 : at->second.dtype;
  };
  const auto read_stored = [&saved, stored](const Parameter& p, std::int64_t first,
                                            std::span<std::byte> to) {
    const DType dtype = stored(p);
    const Dims shape(p.global_shape().dims().begin(), p.global_shape().dims().end());
    const auto end = first + static_cast<std::int64_t>(to.size() / size_of(dtype));
    for (Box& box : boxes_of_range(shape, first, end)) {
      const auto bytes = static_cast<std::size_t>(*num_elements(box.shape)) * size_of(dtype);
      saved.read_box({p.name(), dtype, shape, std::move(box)}, to.first(bytes));
      to = to.subspan(bytes);
    }
  };
  return {
      .dtype =
          [stored](const Parameter& p) {
            return stored(p) == DType::f64 ? DType::f64 : DType::f32;
          },
      .read =
          [stored, read_stored](const Parameter& p, std::int64_t first, std::span<std::byte> to) {
            if (stored(p) != DType::bf16) return read_stored(p, first, to);
            std::vector<std::byte> narrow(to.size() / sizeof(float) * sizeof(bf16));
            read_stored(p, first, narrow);
            const std::vector<float> wide = decode<float>(StoredType::bf16, narrow);
            std::memcpy(to.data(), wide.data(), to.size());
          }};
}

std::uint64_t hf_bytes(const HfContent& content) {
  std::uint64_t bytes =
      data_bytes(specs_of(hf_stacks(*content.parameters, *content.layout), content.dtype));
  for (const auto& [name, text] : content.texts) bytes += text.size();
  return bytes;
}

void write_hf(const fs::path& directory, const HfContent& content, const ParameterValues& values,
              const WriteLimits& limits) {
  const trace::Scope span(trace::Kind::io, "write model.safetensors");
  const std::vector<HfStack> stacks = hf_stacks(*content.parameters, *content.layout);
  const std::vector<TensorSpec> specs = specs_of(stacks, content.dtype);
  Pieces pieces;
  if (data_bytes(specs) <= pieces.bytes) pieces.bytes = 0;  // it is not worth a thread
  if (limits.pace != nullptr) {
    pieces.written = [&](WritePace::Clock::duration took) { limits.pace->rest(took, limits.stop); };
  }
  SafetensorsWriter file(directory / "model.safetensors", specs, {{"format", "pt"}},
                         std::move(pieces));
  TensorWriter writer(file, values, limits);
  for (const std::size_t i : file_order(specs)) writer.write(stacks[i], specs[i].type);
  file.sync();
  file.close();
  for (const auto& [name, text] : content.texts) write_file_atomic(directory / name, text);
  sync_directory(directory);
}

void export_hf(const fs::path& directory, const HfContent& content, const ParameterValues& values) {
  // Without a trailing slash, so that its parent and its name are what they seem.
  const fs::path target = fs::absolute(directory / "").parent_path().lexically_normal();
  std::error_code error;
  require<RecipeError>(!fs::exists(target, error) || fs::is_empty(target, error),
                       "{}: exists and is not empty; name another directory or remove it",
                       target.string());
  create_directories_durably(target.parent_path());
  TemporaryDirectory temporary(target.parent_path() /
                               fmt::format("{}.tmp-{}", target.filename().string(), make_nonce()));
  write_hf(temporary.path(), content, values);
  temporary.rename_to(target);
  sync_directory(target.parent_path());
}

}  // namespace llmtrain::checkpoint
