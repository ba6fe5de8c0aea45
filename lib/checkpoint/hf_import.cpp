#include <algorithm>
#include <optional>
#include <set>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/checkpoint/hf_stack.hpp"
#include "lib/checkpoint/hf_values.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/tensor_set.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

/// ", missing: a, b and 3 more"; empty without names.
std::string listing(std::string_view title, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  if (names.empty()) return {};
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() < kShown) shown.push_back(printable(name));
  }
  std::string text = fmt::format("; {}: {}", title, fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

/// The files of a directory, asked for by the names of a layout.
class Source {
 public:
  Source(const fs::path& path, const HfLayout& layout)
      : path_(path), layout_(layout), files_(TensorSet::open(path)) {}

  /// Refuses files that have other tensors than the layout.
  void check(const std::vector<HfStack>& stacks) const;
  /// Null if the files lack it. Names may lack the layout's prefix.
  const SafetensorsEntry* find(std::string_view name) const;
  const SafetensorsEntry& at(std::string_view name) const { return *find(name); }
  std::vector<std::byte> read(const SafetensorsEntry& entry) const {
    stop_if_asked("loading the first weights");
    std::vector<std::byte> bytes(entry.bytes);
    files_.read_tensor(entry.name, bytes);
    return bytes;
  }

 private:
  void check_copy(const HfCopy& copy) const;
  std::vector<std::string> unexpected() const;

  const fs::path& path_;
  const HfLayout& layout_;
  TensorSet files_;
};

const SafetensorsEntry* Source::find(std::string_view name) const {
  if (files_.contains(name)) return &files_.entry(name);
  if (layout_.prefix.empty() || !name.starts_with(layout_.prefix)) return nullptr;
  name.remove_prefix(layout_.prefix.size());
  return files_.contains(name) ? &files_.entry(name) : nullptr;
}

void Source::check(const std::vector<HfStack>& stacks) const {
  std::vector<std::string> missing;
  std::vector<std::string> other_shape;
  for (const HfStack& stack : stacks) {
    const SafetensorsEntry* entry = find(stack.tensor->name);
    if (entry == nullptr) {
      missing.push_back(stack.tensor->name);
      continue;
    }
    if (entry->shape != stack.file_shape()) {
      other_shape.push_back(fmt::format("{} is {} instead of {}", entry->name,
                                        to_string(entry->shape), to_string(stack.file_shape())));
    }
    require<CheckpointError>(is_weight_type(entry->type),
                             "{}: tensor '{}' is {}; weights are F64, F32, F16 or BF16",
                             path_.string(), printable(entry->name), to_string(entry->type));
  }
  const std::string problems = listing("missing", missing) + listing("unexpected", unexpected()) +
                               listing("of another shape", other_shape);
  require<CheckpointError>(problems.empty(),
                           "{}: not the weights of this model{}; compare its config.json with the "
                           "recipe's model section",
                           path_.string(), problems);
  for (const HfCopy& copy : layout_.copies) check_copy(copy);
}

std::vector<std::string> Source::unexpected() const {
  std::set<std::string, std::less<>> known;
  const auto know = [&](const std::string& name) {
    if (const SafetensorsEntry* entry = find(name)) known.insert(entry->name);
  };
  for (const HfTensor& tensor : layout_.tensors) know(tensor.name);
  for (const HfCopy& copy : layout_.copies) know(copy.name);
  for (const std::string& name : layout_.constants) know(name);
  std::vector<std::string> names = files_.names();
  std::erase_if(names, [&](const std::string& name) { return known.contains(name); });
  return names;
}

void Source::check_copy(const HfCopy& copy) const {
  const SafetensorsEntry* entry = find(copy.name);
  if (entry == nullptr) return;
  const SafetensorsEntry& original = at(copy.of);
  require<CheckpointError>(entry->type == original.type && entry->shape == original.shape &&
                               read(*entry) == read(original),
                           "{}: '{}' differs from '{}', but the model ties them; set "
                           "model.tie_word_embeddings: false",
                           path_.string(), entry->name, original.name);
}

/// This rank's part of a member whose first row is row `begin` of the stack.
template <class T>
std::vector<T> cut(const std::vector<T>& values, const HfStack& stack, const MatrixPart& part,
                   std::int64_t begin) {
  std::vector<T> own;
  own.reserve(static_cast<std::size_t>(part.numel()));
  for (std::int64_t i = begin + part.row; i < begin + part.row + part.rows; ++i) {
    for (std::int64_t j = part.col; j < part.col + part.cols; ++j) {
      own.push_back(values[stack.index(i, j)]);
    }
  }
  return own;
}

template <class T>
void import_stack(const Source& source, ParameterStore& store, const HfStack& stack) {
  const auto is_here = [&](const Parameter* p) { return stack.part_of(*p).has_value(); };
  if (std::ranges::none_of(stack.members, is_here)) return;
  const SafetensorsEntry& entry = source.at(stack.tensor->name);
  const std::vector<T> values = decode<T>(entry.type, source.read(entry));
  std::int64_t begin = 0;
  for (const Parameter* p : stack.members) {
    if (const std::optional<MatrixPart> part = stack.part_of(*p)) {
      const std::vector<T> own = cut(values, stack, *part, begin);
      store.write_part(*p, part->first, std::as_bytes(std::span(own)));
    }
    begin += HfStack::rows_of(*p);
  }
}

}  // namespace

std::string read_hf_config(const fs::path& directory) {
  constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
  return read_file(directory / "config.json", kMaxConfigBytes);
}

void check_hf_files(const fs::path& directory) { TensorSet::open(directory); }

void import_hf(const fs::path& path, ParameterStore& store, const HfLayout& layout) {
  const std::vector<HfStack> stacks = hf_stacks(store, layout);
  const Source source(path, layout);
  source.check(stacks);
  for (const HfStack& stack : stacks) {
    if (stack.members.front()->master_dtype() == DType::f64) {
      import_stack<double>(source, store, stack);
    } else {
      import_stack<float>(source, store, stack);
    }
  }
}

}  // namespace llmtrain::checkpoint
