// The reading half of manifest.hpp.

#include <algorithm>
#include <charconv>

#include "lib/base/require.hpp"
#include "lib/checkpoint/manifest.hpp"

namespace llmtrain::checkpoint {

namespace {

constexpr std::size_t kMaxShortTextBytes = 4096;
constexpr std::size_t kMaxRecipeBytes = std::size_t{4} << 20;

void check_seal(std::string_view text, const std::string& source) {
  const std::size_t body_bytes = text.size() - std::min(text.size(), manifest_seal("").size());
  require<CheckpointError>(text.substr(body_bytes) == manifest_seal(text.substr(0, body_bytes)),
                           "{}: does not match the hash at its end (damaged, truncated or edited)",
                           source);
}

Hash128 parse_hash(JsonReader& json) {
  const std::string text = json.read_string(32);
  Hash128 hash;
  const auto half = [&](std::size_t at, std::uint64_t& out) {
    return std::from_chars(text.data() + at, text.data() + at + 16, out, 16).ptr ==
           text.data() + at + 16;
  };
  if (text.size() != 32 || !half(0, hash.high) || !half(16, hash.low) || to_hex(hash) != text) {
    json.fail_here("a hash is not 32 lower-case hexadecimal digits");
  }
  return hash;
}

/// Reads an object with free keys; `read_value` reads one value.
template <class Map, class ReadValue>
void read_map(JsonReader& json, Map& map, ReadValue read_value) {
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    if (!map.try_emplace(key, read_value()).second) {
      json.fail_here(fmt::format("key '{}' twice in one object", printable(key)));
    }
  }
}

DataCursor parse_cursor(JsonReader& json) {
  DataCursor cursor;
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "epoch") {
      cursor.epoch = json.read_unsigned();
    } else if (key == "index") {
      cursor.index = json.read_unsigned();
    } else if (key == "fingerprint") {
      cursor.fingerprint = json.read_string(kMaxShortTextBytes);
    } else {
      json.fail_here(fmt::format("unknown key '{}'", printable(key)));
    }
  }
  seen.require_all({"epoch", "index", "fingerprint"});
  return cursor;
}

FileRecord parse_file(JsonReader& json) {
  FileRecord file;
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "bytes") {
      file.bytes = json.read_unsigned();
    } else if (key == "xxh3_128") {
      file.xxh3_128 = parse_hash(json);
    } else {
      json.fail_here(fmt::format("unknown key '{}'", printable(key)));
    }
  }
  seen.require_all({"bytes", "xxh3_128"});
  return file;
}

StoredBox parse_box(JsonReader& json) {
  StoredBox stored;
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "offset") {
      stored.box.offset = json.read_dims(kMaxDims);
    } else if (key == "shape") {
      stored.box.shape = json.read_dims(kMaxDims);
    } else if (key == "file") {
      stored.file = json.read_string(255);
    } else if (key == "name_in_file") {
      stored.name_in_file = json.read_string(kMaxTensorNameBytes);
    } else if (key == "xxh3_128") {
      stored.xxh3_128 = parse_hash(json);
    } else {
      json.fail_here(fmt::format("unknown key '{}'", printable(key)));
    }
  }
  seen.require_all({"offset", "shape", "file", "name_in_file"});
  return stored;
}

TensorRecord parse_tensor(JsonReader& json) {
  TensorRecord tensor;
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "dtype") {
      const std::string name = json.read_string(16);
      const std::optional<DType> dtype = parse_dtype(name);
      if (!dtype) json.fail_here(fmt::format("unknown dtype '{}'", printable(name)));
      tensor.dtype = *dtype;
    } else if (key == "shape") {
      tensor.shape = json.read_dims(kMaxDims);
    } else if (key == "boxes") {
      json.open_array();
      while (json.next_element()) tensor.boxes.push_back(parse_box(json));
    } else {
      json.fail_here(fmt::format("unknown key '{}'", printable(key)));
    }
  }
  seen.require_all({"dtype", "shape", "boxes"});
  return tensor;
}

/// Reads the value of one top-level key; false if the key is unknown.
bool parse_field(JsonReader& json, const std::string& key, Manifest& manifest) {
  RunState& run = manifest.run;
  if (key == "step") {
    manifest.step = json.read_unsigned();
  } else if (key == "tokens_seen") {
    run.tokens_seen = json.read_unsigned();
  } else if (key == "schedule_position") {
    run.schedule_position = json.read_unsigned();
  } else if (key == "rng_seed") {
    run.rng_seed = json.read_unsigned();
  } else if (key == "data_cursor") {
    run.data_cursor = parse_cursor(json);
  } else if (key == "state") {
    read_map(json, run.state, [&] { return json.read_scalar(kMaxManifestBytes); });
  } else if (key == "environment") {
    read_map(json, run.environment, [&] { return json.read_string(kMaxShortTextBytes); });
  } else if (key == "recipe") {
    run.recipe = json.read_string(kMaxRecipeBytes);
  } else if (key == "files") {
    read_map(json, manifest.files, [&] { return parse_file(json); });
  } else if (key == "tensors") {
    read_map(json, manifest.tensors, [&] { return parse_tensor(json); });
  } else if (key == "xxh3_128_of_the_above") {
    parse_hash(json);
  } else {
    return false;
  }
  return true;
}

void check_tensor(const std::string& name, const TensorRecord& tensor, const Manifest& manifest,
                  const std::string& source) {
  const std::string shown = printable(name);
  require<CheckpointError>(is_tensor_name(name), "{}: '{}' is not a tensor name", source, shown);
  require<CheckpointError>(tensor.shape.size() <= kMaxDims && num_elements(tensor.shape),
                           "{}: tensor '{}' has the impossible shape {}", source, shown,
                           to_string(tensor.shape));
  // Tiling costs memory for each corner of each box.
  constexpr std::size_t kMaxCorners = std::size_t{1} << 22;
  require<CheckpointError>(tensor.boxes.size() <= kMaxCorners >> tensor.shape.size(),
                           "{}: tensor '{}' has {} boxes, which is too many", source, shown,
                           tensor.boxes.size());
  std::vector<Box> boxes;
  boxes.reserve(tensor.boxes.size());
  for (const StoredBox& stored : tensor.boxes) {
    require<CheckpointError>(lies_inside(tensor.shape, stored.box),
                             "{}: tensor '{}' of shape {} has a box at {} of shape {}", source,
                             shown, to_string(tensor.shape), to_string(stored.box.offset),
                             to_string(stored.box.shape));
    require<CheckpointError>(manifest.files.contains(stored.file),
                             "{}: tensor '{}' lies in '{}', which is not among the files", source,
                             shown, printable(stored.file));
    require<CheckpointError>(is_tensor_name(stored.name_in_file),
                             "{}: tensor '{}' lies under the bad name '{}'", source, shown,
                             printable(stored.name_in_file));
    boxes.push_back(stored.box);
  }
  require<CheckpointError>(tile_exactly(tensor.shape, boxes),
                           "{}: the {} boxes of tensor '{}' do not cover its shape {} exactly once",
                           source, boxes.size(), shown, to_string(tensor.shape));
}

/// Names are plain, boxes tile their tensors, and every file that is used is listed.
void check_manifest(const Manifest& manifest, const std::string& source) {
  for (const auto& [name, record] : manifest.files) {
    require<CheckpointError>(is_plain_file_name(name) && name != kManifestName,
                             "{}: '{}' is not a plain file name", source, printable(name));
  }
  for (const auto& [name, tensor] : manifest.tensors) check_tensor(name, tensor, manifest, source);
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& source) {
  require<CheckpointError>(text.size() <= kMaxManifestBytes,
                           "{}: {} bytes, at most {} are accepted", source, text.size(),
                           kMaxManifestBytes);
  check_seal(text, source);
  Manifest manifest;
  JsonReader json(text, source);
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "format_version") {
      const std::uint64_t version = json.read_unsigned();
      require<CheckpointError>(version >= 1 && version <= kManifestVersion,
                               "{}: format version {}, but this program reads 1 to {}", source,
                               version, kManifestVersion);
      continue;
    }
    seen.require_all({"format_version"});  // first, so that a newer format is named as such
    if (!parse_field(json, key, manifest)) {
      json.fail_here(fmt::format("unknown key '{}'", printable(key)));
    }
  }
  json.finish();
  seen.require_all({"step", "tokens_seen", "schedule_position", "rng_seed", "data_cursor", "state",
                    "environment", "recipe", "files", "tensors"});
  check_manifest(manifest, source);
  return manifest;
}

}  // namespace llmtrain::checkpoint
