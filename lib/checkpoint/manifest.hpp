#pragma once
/// The manifest of a checkpoint: what the run was, and where each logical tensor's boxes lie. JSON,
/// sealed by a hash of itself. Nothing in it knows a rank.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/hash.hpp"
#include "lib/checkpoint/box.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/safetensors_writer.hpp"
#include "lib/tensor/dtype.hpp"

namespace llmtrain::checkpoint {

/// Written; 1, which has no hashes of boxes, is read too.
inline constexpr std::uint64_t kManifestVersion = 2;
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

/// The next sample of the stream, which is a pure function of (seed, epoch, index).
struct DataCursor {
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
  std::string fingerprint;  // of the data that the stream reads
  bool operator==(const DataCursor&) const = default;
};

/// Everything but the tensors that a run needs in order to go on.
struct RunState {
  std::uint64_t tokens_seen = 0;
  std::uint64_t schedule_position = 0;
  std::uint64_t rng_seed = 0;
  DataCursor data_cursor;
  std::map<std::string, Scalar> state;             // counters, loss scale, choices made by timing
  std::map<std::string, std::string> environment;  // commit, host, compiler, ISA, threads
  std::string recipe;                              // resolved, as YAML
  bool operator==(const RunState&) const = default;
};

struct StoredBox {
  Box box;
  std::string file;
  std::string name_in_file;
  std::optional<Hash128> xxh3_128 = {};  // of its values: tells which tensor of a file is damaged
  bool operator==(const StoredBox&) const = default;
};

struct TensorRecord {
  DType dtype = DType::f32;
  Dims shape;
  std::vector<StoredBox> boxes;  // cover the tensor exactly once
  bool operator==(const TensorRecord&) const = default;
};

struct Manifest {
  std::uint64_t step = 0;
  RunState run;
  std::map<std::string, FileRecord> files;  // by plain file name
  std::map<std::string, TensorRecord, std::less<>> tensors;
  bool operator==(const Manifest&) const = default;
};

/// The finite double as such, the others as the strings "inf", "-inf" and "nan", which JSON cannot
/// say.
Scalar scalar_of(double value);
/// Reads back what scalar_of made; CheckpointError naming `key` if it is missing or not a number.
double double_at(const std::map<std::string, Scalar>& state, const std::string& key);

/// The sealed JSON text. CheckpointError if the reader would refuse it.
std::string format_manifest(const Manifest& manifest);

/// Checks the seal, then every field. CheckpointError naming `source`, the place and the rule
/// broken.
Manifest parse_manifest(std::string_view text, const std::string& source);

/// The end of a manifest file: the hash of `body`, which is the JSON object up to its last value,
/// and the closing brace. Fixed in form, so that no byte of the file is unchecked.
std::string manifest_seal(std::string_view body);

}  // namespace llmtrain::checkpoint
