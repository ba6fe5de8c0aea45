#include "lib/checkpoint/shards.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/activity.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/checkpoint/json_reader.hpp"

namespace llmtrain::checkpoint {

std::uint64_t TensorBox::size_bytes() const {
  return static_cast<std::uint64_t>(num_elements(box.shape).value_or(0)) * size_of(dtype);
}

namespace {

void hit(const Failpoint& failpoint, std::string_view point) {
  if (failpoint) failpoint(point);
}

/// What lies on the host of a device's tensor at a time.
constexpr std::uint64_t kPartBytes = std::uint64_t{16} << 20;
/// A full shard has at least so many pieces, which wait in memory to be written.
constexpr std::uint64_t kPiecesOfShard = 8;
/// Hashed twice, and copied if it has to be, while it is in the caches.
constexpr std::uint64_t kCachedBytes = std::uint64_t{128} << 10;

/// Calls use(part) for parts of `bytes` that stay in the caches meanwhile.
template <class F>
void in_cached_parts(std::span<const std::byte> bytes, const F& use) {
  while (!bytes.empty()) {
    const std::span<const std::byte> part = bytes.first(std::min(bytes.size(), kCachedBytes));
    use(part);
    bytes = bytes.subspan(part.size());
  }
}

/// Calls use(part) for the parts of a box's values, in their order; each is a sign of life.
void in_parts(const TensorBox& box, const ShardOptions& options,
              const std::function<void(std::span<const std::byte>)>& use) {
  const std::uint64_t total = box.size_bytes();
  std::vector<std::byte> fetched;
  for (std::uint64_t first = 0; first < total; first += kPartBytes) {
    require<StorageError>(!options.stop.stop_requested(), "the save was given up");
    activity::tick();
    const auto bytes = static_cast<std::size_t>(std::min(kPartBytes, total - first));
    if (!box.fetch) {
      use(box.bytes.subspan(first, bytes));
      continue;
    }
    fetched.resize(bytes);
    try {
      box.fetch(first, fetched);
    } catch (const StorageError& error) {
      throw SourceFailed(error.what());
    }
    use(fetched);
  }
}

/// Returns the hash of its values: `known`, or made of what is written.
Hash128 write_box(SafetensorsWriter& writer, const TensorBox& box, bool is_kept,
                  const Hash128* known, const ShardOptions& options) {
  const auto write = [&](std::span<const std::byte> part) {
    is_kept ? writer.write_kept(part) : writer.write(part);
  };
  if (known != nullptr) {
    in_parts(box, options, write);
    return *known;
  }
  Hasher128 hasher;
  in_parts(box, options, [&](std::span<const std::byte> part) {
    in_cached_parts(part, [&](std::span<const std::byte> cached) {
      write(cached);
      hasher.update(cached);
    });
  });
  return hasher.digest();
}

void check_box(const TensorBox& box) {
  const std::optional<std::int64_t> elements = num_elements(box.box.shape);
  require<CheckpointError>(box.global_shape.size() <= kMaxDims && num_elements(box.global_shape) &&
                               elements && lies_inside(box.global_shape, box.box),
                           "tensor '{}' of shape {}: cannot store a box at {} of shape {}",
                           printable(box.name), to_string(box.global_shape),
                           to_string(box.box.offset), to_string(box.box.shape));
  require(*elements > 0 || box.box.shape == box.global_shape,
          "tensor '{}': an empty part of it has no place on disk", printable(box.name));
  require(box.fetch ? box.bytes.empty() : box.bytes.size() == box.size_bytes(),
          "tensor '{}': a box of {} {} comes with {} bytes", printable(box.name),
          to_string(box.dtype), to_string(box.box.shape), box.bytes.size());
}

std::vector<TensorSpec> specs_of(std::span<const TensorBox> boxes) {
  std::vector<TensorSpec> specs;
  specs.reserve(boxes.size());
  for (const TensorBox& box : boxes) {
    specs.push_back(
        {name_in_file(box.name, box.global_shape, box.box), stored_type(box.dtype), box.box.shape});
  }
  return specs;
}

/// Whether the boxes lie behind each other as in the file, from a block's beginning on. Single ones
/// that do by chance are not worth a run of pieces of their own.
bool lie_as_in_file(std::span<const TensorBox> boxes, std::span<const std::size_t> order) {
  const std::byte* next = boxes[order.front()].bytes.data();
  if (reinterpret_cast<std::uintptr_t>(next) % File::kDirectBlock != 0) return false;
  return std::ranges::all_of(order, [&](std::size_t i) {
    const std::byte* const begin = std::exchange(next, next + boxes[i].bytes.size());
    return !boxes[i].fetch && boxes[i].bytes.data() == begin;
  });
}

/// Of each piece in which a file with so many bytes of data is written; 0: it is not worth a
/// thread.
std::size_t piece_bytes(std::uint64_t data_bytes, std::uint64_t max_shard_bytes) {
  const std::size_t bytes =
      std::min<std::uint64_t>(Pieces{}.bytes, max_shard_bytes / kPiecesOfShard);
  return data_bytes > bytes ? bytes : 0;
}

std::uint64_t size_of_all(std::span<const TensorBox> boxes) {
  std::uint64_t total = 0;
  for (const TensorBox& box : boxes) total += box.size_bytes();
  return total;
}

SafetensorsHead head_of(std::span<const TensorBox> boxes, std::uint64_t max_shard_bytes,
                        const std::string& file) {
  // The data of a large file begins with a block, whether or not its boxes lie so: who saves beside
  // a run makes the same file as who saves in its place.
  const bool is_large = piece_bytes(size_of_all(boxes), max_shard_bytes) > 0;
  return make_head(specs_of(boxes), {{"format", "pt"}},
                   is_large ? File::kDirectBlock : kLeastAlignment, file);
}

struct WrittenShard {
  FileRecord file;
  std::vector<Hash128> hashes;  // of the boxes
};

/// `known` is null where nobody has hashed it yet.
WrittenShard write_shard(const std::filesystem::path& path, std::span<const TensorBox> boxes,
                         std::span<const std::size_t> order, const ShardHashes* known,
                         const ShardOptions& options) {
  const Failpoint& failpoint = options.failpoint;
  require(known == nullptr || known->boxes.size() == boxes.size(), "hashes of other boxes");
  hit(failpoint, "shard.create");
  Pieces pieces;
  pieces.bytes = piece_bytes(size_of_all(boxes), options.max_shard_bytes);
  // Who saves beside a run leaves it the processor, who saves in its place wants to be done.
  pieces.past_cache = options.pace != nullptr;
  pieces.stop = options.stop;
  if (options.pace != nullptr) {
    pieces.written = [&](WritePace::Clock::duration took) {
      options.pace->rest(took, options.stop);
    };
  }
  const bool is_kept = lie_as_in_file(boxes, order);
  SafetensorsWriter writer(path, head_of(boxes, options.max_shard_bytes, path.string()),
                           std::move(pieces),
                           known != nullptr ? std::optional(known->file) : std::nullopt);
  WrittenShard shard{.file = {}, .hashes = std::vector<Hash128>(boxes.size())};
  for (const std::size_t& i : order) {
    hit(failpoint, &i == &order.front()  ? "shard.write.first"
                   : &i == &order.back() ? "shard.write.last"
                                         : "shard.write");
    shard.hashes[i] = write_box(writer, boxes[i], is_kept,
                                known != nullptr ? &known->boxes[i] : nullptr, options);
  }
  hit(failpoint, "shard.sync");
  writer.sync();
  hit(failpoint, "shard.close");
  shard.file = writer.close();
  return shard;
}

void add_box(WrittenShards& written, const TensorBox& box, const std::string& file,
             const Hash128& hash) {
  const auto [at, is_new] = written.tensors.try_emplace(
      box.name, TensorRecord{.dtype = box.dtype, .shape = box.global_shape, .boxes = {}});
  TensorRecord& tensor = at->second;
  require<CheckpointError>(tensor.dtype == box.dtype && tensor.shape == box.global_shape,
                           "tensor '{}' comes as {} {} and as {} {}", printable(box.name),
                           to_string(tensor.dtype), to_string(tensor.shape), to_string(box.dtype),
                           to_string(box.global_shape));
  tensor.boxes.push_back({box.box, file, name_in_file(box.name, box.global_shape, box.box), hash});
}

}  // namespace

std::string name_in_file(const std::string& tensor, const Dims& global_shape, const Box& box) {
  if (box.shape == global_shape) return tensor;
  return fmt::format("{}@{}", tensor, fmt::join(box.offset, ","));
}

std::vector<ShardBoxes> divide_into_shards(std::span<const TensorBox> boxes,
                                           std::uint64_t max_shard_bytes) {
  std::vector<ShardBoxes> shards;
  for (std::size_t begin = 0; begin < boxes.size(); begin = shards.back().end) {
    std::size_t end = begin;
    std::uint64_t bytes = 0;
    while (end < boxes.size() && end - begin < kMaxTensorsPerFile &&
           (end == begin || bytes + boxes[end].size_bytes() <= max_shard_bytes)) {
      bytes += boxes[end++].size_bytes();
    }
    shards.push_back({begin, end, file_order(specs_of(boxes.subspan(begin, end - begin)))});
  }
  return shards;
}

ShardHashes hash_shard(std::span<const TensorBox> boxes, std::span<const std::size_t> order,
                       std::uint64_t max_shard_bytes) {
  for (const TensorBox& box : boxes) {
    check_box(box);
    require(!box.fetch, "tensor '{}' is hashed and not on the host", printable(box.name));
  }
  ShardHashes hashes{.file = {}, .boxes = std::vector<Hash128>(boxes.size())};
  Hasher128 of_file;
  of_file.update(head_of(boxes, max_shard_bytes, "a file of a checkpoint").text);
  for (const std::size_t i : order) {
    Hasher128 of_box;
    in_parts(boxes[i], {}, [&](std::span<const std::byte> part) {
      in_cached_parts(part, [&](std::span<const std::byte> cached) {
        of_file.update(cached);
        of_box.update(cached);
      });
    });
    hashes.boxes[i] = of_box.digest();
  }
  hashes.file = of_file.digest();
  return hashes;
}

WrittenShards write_shards(const std::filesystem::path& directory, std::span<const TensorBox> boxes,
                           const ShardOptions& options, std::span<const ShardHashes> hashes) {
  for (const TensorBox& box : boxes) check_box(box);
  const auto begin_of_all = std::chrono::steady_clock::now();
  WrittenShards written;
  const std::vector<ShardBoxes> shards = divide_into_shards(boxes, options.max_shard_bytes);
  require(hashes.empty() || hashes.size() == shards.size(), "hashes of {} files for {}",
          hashes.size(), shards.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const ShardBoxes& shard = shards[s];
    const std::string file = fmt::format("shard-{:04}-{:04}.safetensors", options.writer, s);
    const auto group = boxes.subspan(shard.begin, shard.end - shard.begin);
    const trace::Scope span(trace::Kind::io, [&] { return "write " + file; });
    const WrittenShard shard_written = write_shard(directory / file, group, shard.order,
                                                   hashes.empty() ? nullptr : &hashes[s], options);
    written.files[file] = shard_written.file;
    for (std::size_t i = 0; i < group.size(); ++i) {
      add_box(written, group[i], file, shard_written.hashes[i]);
    }
  }
  const auto took = std::chrono::steady_clock::now() - begin_of_all;
  written.seconds = std::chrono::duration<double>(took).count();
  return written;
}

void add_shards(Manifest& manifest, const WrittenShards& shards) {
  for (const auto& [file, record] : shards.files) {
    require(manifest.files.emplace(file, record).second, "two writers wrote {}", file);
  }
  for (const auto& [name, tensor] : shards.tensors) {
    const auto [at, is_new] = manifest.tensors.try_emplace(name, tensor);
    if (is_new) continue;
    TensorRecord& known = at->second;
    require<CheckpointError>(known.dtype == tensor.dtype && known.shape == tensor.shape,
                             "tensor '{}': one writer has {} {}, another {} {}", printable(name),
                             to_string(known.dtype), to_string(known.shape),
                             to_string(tensor.dtype), to_string(tensor.shape));
    known.boxes.insert(known.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
}

}  // namespace llmtrain::checkpoint
