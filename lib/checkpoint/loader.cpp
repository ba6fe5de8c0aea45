#include "lib/checkpoint/loader.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/stored_read.hpp"
#include "lib/checkpoint/verify.hpp"

namespace llmtrain::checkpoint {

namespace {

// Runs closer than this are cheaper to read together, with what lies between, than one by one.
constexpr std::int64_t kMaxGapBytes = 64 << 10;
constexpr std::int64_t kMaxReadBytes = 4 << 20;
// Far below what a process may have open: thousands of ranks have written as many files.
constexpr std::size_t kMaxOpenShards = 256;

/// Collects runs of one stored tensor, ascending, and reads neighbours with one system call.
class RunReader {
 public:
  RunReader(const SafetensorsFile& file, const SafetensorsEntry& entry, std::span<std::byte> out)
      : file_(file), entry_(entry), out_(out) {}

  /// In bytes, relative to the stored tensor and to `out`.
  void add(const Run& run) {
    if (!runs_.empty()) {
      const std::int64_t gap = run.from - end_of_last();
      const std::int64_t span = run.from + run.count - runs_.front().from;
      if (gap > kMaxGapBytes || span > kMaxReadBytes) flush();
    }
    runs_.push_back(run);
  }

  void flush() {
    if (runs_.empty()) return;
    const std::int64_t begin = runs_.front().from;
    if (runs_.size() == 1) {
      read(begin, target(runs_.front()));
    } else {
      buffer_.resize(static_cast<std::size_t>(end_of_last() - begin));
      read(begin, buffer_);
      for (const Run& run : runs_) {
        std::memcpy(target(run).data(), buffer_.data() + (run.from - begin), target(run).size());
      }
    }
    runs_.clear();
  }

 private:
  void read(std::int64_t begin, std::span<std::byte> to) const {
    read_patiently([&] { file_.read_range(entry_, static_cast<std::uint64_t>(begin), to); });
  }
  std::int64_t end_of_last() const { return runs_.back().from + runs_.back().count; }
  std::span<std::byte> target(const Run& run) const {
    return out_.subspan(static_cast<std::size_t>(run.to), static_cast<std::size_t>(run.count));
  }

  const SafetensorsFile& file_;
  const SafetensorsEntry& entry_;
  std::span<std::byte> out_;
  std::vector<Run> runs_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Loader::Loader(const std::filesystem::path& directory)
    : Loader(directory, read_manifest(directory)) {}

Loader::Loader(std::filesystem::path directory, Manifest manifest)
    : directory_(std::move(directory)), manifest_(std::move(manifest)) {}

NameDifference Loader::compare(std::span<const std::string> expected) const {
  std::vector<std::string> wanted(expected.begin(), expected.end());
  std::sort(wanted.begin(), wanted.end());
  NameDifference difference;
  for (const std::string& name : wanted) {
    if (!manifest_.tensors.contains(name)) difference.missing.push_back(name);
  }
  for (const auto& [name, record] : manifest_.tensors) {
    if (!std::binary_search(wanted.begin(), wanted.end(), name)) {
      difference.unexpected.push_back(name);
    }
  }
  return difference;
}

const TensorRecord& Loader::tensor_of(const Request& request) const {
  const auto at = manifest_.tensors.find(request.name);
  require<CheckpointError>(at != manifest_.tensors.end(), "{}: has no tensor '{}'",
                           directory_.string(), printable(request.name));
  const TensorRecord& tensor = at->second;
  require<ShapeDiffers>(tensor.dtype == request.dtype && tensor.shape == request.global_shape,
                        "{}: tensor '{}' is {} {} in the checkpoint, but this run needs {} {}",
                        directory_.string(), printable(request.name), to_string(tensor.dtype),
                        to_string(tensor.shape), to_string(request.dtype),
                        to_string(request.global_shape));
  require(lies_inside(tensor.shape, request.box),
          "tensor '{}' of shape {}: a box at {} of shape {}", printable(request.name),
          to_string(tensor.shape), to_string(request.box.offset), to_string(request.box.shape));
  return tensor;
}

const SafetensorsEntry& Loader::entry_of(const SafetensorsFile& file, const StoredBox& stored,
                                         DType dtype) {
  const SafetensorsEntry& entry = file.entry(stored.name_in_file);
  require<CheckpointError>(entry.type == stored_type(dtype) && entry.shape == stored.box.shape,
                           "{}: '{}' is {} {}, but the manifest says {} {}", file.path().string(),
                           printable(entry.name), to_string(entry.type), to_string(entry.shape),
                           to_string(stored_type(dtype)), to_string(stored.box.shape));
  return entry;
}

void Loader::read_box(const Request& request, std::span<std::byte> out) {
  const TensorRecord& tensor = tensor_of(request);
  const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  require(static_cast<std::int64_t>(out.size()) == *num_elements(request.box.shape) * element_bytes,
          "tensor '{}': a box of shape {} into {} bytes", printable(request.name),
          to_string(request.box.shape), out.size());
  for (const StoredBox& stored : tensor.boxes) {
    if (!intersect(stored.box, request.box)) continue;
    const trace::Scope span(trace::Kind::io, [&] { return "load " + stored.file; });
    const std::shared_ptr<const SafetensorsFile> file = shard(stored.file);
    RunReader reader(*file, entry_of(*file, stored, tensor.dtype), out);
    for_each_run(stored.box, request.box, [&](const Run& run) {
      reader.add({run.from * element_bytes, run.to * element_bytes, run.count * element_bytes});
    });
    reader.flush();
  }
}

std::optional<std::vector<Loader::FileRun>> Loader::find_runs(const Request& request,
                                                              const std::set<std::string>& files) {
  const TensorRecord& tensor = tensor_of(request);
  const std::uint64_t element_bytes = size_of(tensor.dtype);
  std::vector<FileRun> runs;
  for (const StoredBox& stored : tensor.boxes) {
    if (!intersect(stored.box, request.box)) continue;
    if (!files.contains(stored.file)) return std::nullopt;
    const std::shared_ptr<const SafetensorsFile> file = shard(stored.file);
    const SafetensorsEntry& entry = entry_of(*file, stored, tensor.dtype);
    std::size_t count = 0;
    for_each_run(stored.box, request.box, [&](const Run& run) {
      if (++count > 1) return;
      runs.push_back({stored.file,
                      entry.offset + static_cast<std::uint64_t>(run.from) * element_bytes,
                      static_cast<std::uint64_t>(run.count) * element_bytes,
                      static_cast<std::uint64_t>(run.to) * element_bytes});
    });
    if (count > 1) return std::nullopt;
  }
  return runs;
}

std::shared_ptr<const SafetensorsFile> Loader::shard(const std::string& file) {
  const std::lock_guard lock(opening_);
  const auto at = shards_.find(file);
  if (at != shards_.end()) return at->second;
  if (shards_.size() >= kMaxOpenShards) shards_.clear();
  const auto open = [&] { return SafetensorsFile::open_nofollow(directory_ / file); };
  auto opened =
      std::make_shared<const SafetensorsFile>(read_patiently([&] { return read_stored(open); }));
  return shards_.emplace(file, std::move(opened)).first->second;
}

}  // namespace llmtrain::checkpoint
