#include "lib/checkpoint/manifest.hpp"

#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

namespace {

template <class Map, class AppendValue>
void append_map(std::string& out, const Map& map, AppendValue append_value) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : map) {
    out += first ? "\n    " : ",\n    ";
    first = false;
    append_json_string(out, key);
    out += ": ";
    append_value(value);
  }
  out += map.empty() ? "}" : "\n  }";
}

void append_scalar(std::string& out, const Scalar& scalar) {
  if (const auto* text = std::get_if<std::string>(&scalar)) {
    append_json_string(out, *text);
  } else if (const auto* number = std::get_if<double>(&scalar)) {
    require(std::isfinite(*number), "a state value of {} needs scalar_of()", *number);
    const std::string digits = fmt::format("{}", *number);
    out += digits;
    if (digits.find_first_of(".e") == std::string::npos) out += ".0";
  } else if (const auto* integer = std::get_if<std::int64_t>(&scalar)) {
    out += fmt::format("{}", *integer);
  } else {
    out += std::get<bool>(scalar) ? "true" : "false";
  }
}

void append_tensor(std::string& out, const TensorRecord& tensor) {
  out += fmt::format(R"({{"dtype": "{}", "shape": {}, "boxes": [)", to_string(tensor.dtype),
                     to_string(tensor.shape));
  bool first = true;
  for (const StoredBox& stored : tensor.boxes) {
    out += fmt::format(R"({}{{"offset": {}, "shape": {}, "file": )", first ? "" : ", ",
                       to_string(stored.box.offset), to_string(stored.box.shape));
    first = false;
    append_json_string(out, stored.file);
    out += ", \"name_in_file\": ";
    append_json_string(out, stored.name_in_file);
    if (stored.xxh3_128) out += fmt::format(", \"xxh3_128\": \"{}\"", to_hex(*stored.xxh3_128));
    out += '}';
  }
  out += "]}";
}

}  // namespace

Scalar scalar_of(double value) {
  if (std::isnan(value)) return std::string("nan");
  if (std::isinf(value)) return std::string(value > 0 ? "inf" : "-inf");
  return value;
}

double double_at(const std::map<std::string, Scalar>& state, const std::string& key) {
  const auto at = state.find(key);
  require<CheckpointError>(at != state.end(), "the checkpoint's state has no '{}'", key);
  if (const auto* number = std::get_if<double>(&at->second)) return *number;
  const auto* text = std::get_if<std::string>(&at->second);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text != nullptr && *text == "inf") return kInfinity;
  if (text != nullptr && *text == "-inf") return -kInfinity;
  require<CheckpointError>(text != nullptr && *text == "nan",
                           "the checkpoint's state '{}' is not a floating-point number", key);
  return std::numeric_limits<double>::quiet_NaN();
}

std::string format_manifest(const Manifest& manifest) {
  const RunState& run = manifest.run;
  const auto append_text = [](std::string& out) {
    return [&out](const std::string& text) { append_json_string(out, text); };
  };
  std::string out = fmt::format(
      "{{\n  \"format_version\": {},\n  \"step\": {},\n  \"tokens_seen\": {},\n"
      "  \"schedule_position\": {},\n  \"rng_seed\": {},\n"
      "  \"data_cursor\": {{\"epoch\": {}, \"index\": {}, \"fingerprint\": ",
      kManifestVersion, manifest.step, run.tokens_seen, run.schedule_position, run.rng_seed,
      run.data_cursor.epoch, run.data_cursor.index);
  append_json_string(out, run.data_cursor.fingerprint);
  out += "},\n  \"state\": ";
  append_map(out, run.state, [&](const Scalar& scalar) { append_scalar(out, scalar); });
  out += ",\n  \"environment\": ";
  append_map(out, run.environment, append_text(out));
  out += ",\n  \"recipe\": ";
  append_json_string(out, run.recipe);
  out += ",\n  \"files\": ";
  append_map(out, manifest.files, [&](const FileRecord& file) {
    out += fmt::format(R"({{"bytes": {}, "xxh3_128": "{}"}})", file.bytes, to_hex(file.xxh3_128));
  });
  out += ",\n  \"tensors\": ";
  append_map(out, manifest.tensors,
             [&](const TensorRecord& tensor) { append_tensor(out, tensor); });
  out += manifest_seal(out);
  parse_manifest(out, fmt::format("the new manifest of step {}", manifest.step));
  return out;
}

std::string manifest_seal(std::string_view body) {
  return fmt::format(",\n  \"xxh3_128_of_the_above\": \"{}\"\n}}\n", to_hex(hash128(body)));
}

}  // namespace llmtrain::checkpoint
