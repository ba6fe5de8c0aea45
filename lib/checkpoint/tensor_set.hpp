#pragma once
/// A Hugging Face model directory (or one .safetensors file) seen as one set of named tensors.

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/safetensors.hpp"

namespace llmtrain::checkpoint {

class TensorSet {
 public:
  /// `path` is a .safetensors file, or a directory with `model.safetensors.index.json` (sharded) or
  /// `model.safetensors`. Opens and checks every file. CheckpointError if an indexed tensor is
  /// missing from its file, or a file of the index holds a tensor that the index does not list.
  static TensorSet open(const std::filesystem::path& path);

  /// All names, ascending.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return file_of_.contains(name); }
  /// CheckpointError naming the directory if there is no such tensor.
  const SafetensorsFile& file_of(std::string_view name) const;
  const SafetensorsEntry& entry(std::string_view name) const { return file_of(name).entry(name); }
  void read_tensor(std::string_view name, std::span<std::byte> out) const;

 private:
  void add_file(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;  // tensor name -> index of files_
};

/// The `weight_map` of a `model.safetensors.index.json`: tensor name -> plain file name.
/// CheckpointError for anything else than an object with a `weight_map` (other keys are passed
/// over).
std::map<std::string, std::string> parse_weight_map(std::string_view json,
                                                    const std::string& source);

}  // namespace llmtrain::checkpoint
