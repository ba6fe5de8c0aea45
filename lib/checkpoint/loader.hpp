#pragma once
/// Reading any box of any tensor of a checkpoint, whatever layout wrote it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/checkpoint/manifest.hpp"
#include "lib/checkpoint/safetensors.hpp"

namespace llmtrain::checkpoint {

/// A tensor is there, of another shape or type than is asked for: the recipe is another one.
class ShapeDiffers : public CheckpointError {
  using CheckpointError::CheckpointError;
};

/// Names that only one side has, ascending.
struct NameDifference {
  std::vector<std::string> missing;     // expected, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not expected
};

/// Reads without verifying hashes: verify first, or meanwhile. Opens shards when first needed and
/// keeps some of them open. Any number of threads may read. What storage fails to give is tried
/// again (read_patiently) before it is an error.
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

  /// A part of a box that lies in one piece in a file, and in the box: bytes [begin, begin + bytes)
  /// of the file, `to` bytes behind the box's first one.
  struct FileRun {
    std::string file;
    std::uint64_t begin = 0, bytes = 0, to = 0;
  };
  /// Where `files` have what read_box() would read; nothing where others have some of it, or where
  /// rows of a stored box lie apart. Errors as those of read_box().
  std::optional<std::vector<FileRun>> find_runs(const Request& request,
                                                const std::set<std::string>& files);

 private:
  /// The tensor, which is as the caller expects it.
  const TensorRecord& tensor_of(const Request& request) const;
  /// What a file says of a stored box of it, as the manifest does.
  static const SafetensorsEntry& entry_of(const SafetensorsFile& file, const StoredBox& stored,
                                          DType dtype);
  std::shared_ptr<const SafetensorsFile> shard(const std::string& file);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::mutex opening_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> shards_;
};

}  // namespace llmtrain::checkpoint
