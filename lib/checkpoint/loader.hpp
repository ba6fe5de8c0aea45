#pragma once
/// Reading any box of any tensor of a checkpoint, whatever layout wrote it.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/manifest.hpp"
#include "lib/checkpoint/safetensors.hpp"

namespace llmtrain::checkpoint {

/// Names that only one side has, ascending.
struct NameDifference {
  std::vector<std::string> missing;     // expected, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not expected
};

/// Reads without verifying hashes: verify first. Opens shards when first needed and keeps some of
/// them open. Any number of threads may read.
class Loader {
 public:
  explicit Loader(const std::filesystem::path& directory);
  /// Of shards that lie in `directory` before their manifest does.
  Loader(std::filesystem::path directory, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  NameDifference compare(std::span<const std::string> expected) const;

  /// What the caller expects of a tensor, and the part of it that it wants.
  struct Request {
    std::string name;
    DType dtype = DType::f32;
    Dims global_shape;
    Box box;
  };
  /// Fills `out`, which has exactly the box's bytes, row-major. CheckpointError naming the tensor,
  /// with both dtypes and shapes, if the checkpoint has it otherwise or not at all.
  void read_box(const Request& request, std::span<std::byte> out);

 private:
  std::shared_ptr<const SafetensorsFile> shard(const std::string& file);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::mutex opening_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> shards_;
};

}  // namespace llmtrain::checkpoint
