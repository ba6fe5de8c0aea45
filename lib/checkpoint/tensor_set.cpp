#include "lib/checkpoint/tensor_set.hpp"

#include <set>

#include "lib/base/require.hpp"
#include "lib/checkpoint/json_reader.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;
constexpr std::string_view kGetWeights =
    "fetch the model's safetensors files, or make them by save_pretrained() of transformers";
}  // namespace

std::map<std::string, std::string> parse_weight_map(std::string_view text,
                                                    const std::string& source) {
  std::map<std::string, std::string> weight_map;
  JsonReader json(text, source);
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key != "weight_map") {
      json.skip_value();
      continue;
    }
    std::string name;
    json.open_object();
    while (json.next_key(name)) {
      if (!is_tensor_name(name))
        json.fail_here("an empty tensor name or one with control characters");
      std::string file = json.read_string(255);
      if (!is_plain_file_name(file)) {
        json.fail_here(fmt::format("'{}' is not a plain file name", printable(file)));
      }
      if (!weight_map.emplace(name, std::move(file)).second) {
        json.fail_here(fmt::format("tensor '{}' twice", printable(name)));
      }
    }
  }
  json.finish();
  seen.require_all({"weight_map"});
  return weight_map;
}

TensorSet TensorSet::open(const fs::path& path) {
  TensorSet set;
  set.path_ = path;
  const fs::path index = path / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    set.add_file(path);
    return set;
  }
  if (!fs::exists(index, error)) {
    const fs::path single = path / "model.safetensors";
    require<CheckpointError>(fs::exists(single, error),
                             "{}: has neither model.safetensors nor model.safetensors.index.json; "
                             "{}",
                             path.string(), kGetWeights);
    set.add_file(single);
    return set;
  }
  const auto weight_map = parse_weight_map(read_file(index, kMaxIndexBytes), index.string());
  std::set<std::string> files;
  for (const auto& [name, file] : weight_map) files.insert(file);
  for (const std::string& file : files) {
    require<CheckpointError>(fs::exists(path / file, error), "{}: lists {}, which is missing; {}",
                             index.string(), file, kGetWeights);
    set.add_file(path / file);
  }
  for (const auto& [name, file] : weight_map) {
    require<CheckpointError>(set.contains(name) && set.file_of(name).path().filename() == file,
                             "{}: puts tensor '{}' in {}, which does not have it; {}",
                             index.string(), printable(name), file, kGetWeights);
  }
  for (const auto& [name, file] : set.file_of_) {
    require<CheckpointError>(weight_map.contains(name), "{}: does not list tensor '{}' of {}; {}",
                             index.string(), printable(name), set.files_[file].path().string(),
                             kGetWeights);
  }
  return set;
}

void TensorSet::add_file(const fs::path& path) {
  files_.push_back(SafetensorsFile::open(path));
  for (const SafetensorsEntry& entry : files_.back().entries()) {
    require<CheckpointError>(file_of_.emplace(entry.name, files_.size() - 1).second,
                             "{}: tensor '{}' is in another file of the directory too",
                             path.string(), printable(entry.name));
  }
}

std::vector<std::string> TensorSet::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& TensorSet::file_of(std::string_view name) const {
  const auto at = file_of_.find(name);
  require<CheckpointError>(at != file_of_.end(), "{}: has no tensor '{}'", path_.string(),
                           printable(name));
  return files_[at->second];
}

void TensorSet::read_tensor(std::string_view name, std::span<std::byte> out) const {
  file_of(name).read_tensor(name, out);
}

}  // namespace llmtrain::checkpoint
