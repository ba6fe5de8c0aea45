#include "lib/checkpoint/shards_text.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

using Json = nlohmann::json;

std::string format_shards(const WrittenShards& shards) {
  Json json;
  json["files"] = Json::object();
  for (const auto& [name, file] : shards.files) {
    json["files"][name] = {file.bytes, file.xxh3_128.high, file.xxh3_128.low};
  }
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : shards.tensors) {
    Json& record = json["tensors"][name];
    record = {{"dtype", static_cast<int>(tensor.dtype)}, {"shape", tensor.shape}};
    record["boxes"] = Json::array();
    for (const StoredBox& stored : tensor.boxes) {
      const Hash128 hash = stored.xxh3_128.value();
      record["boxes"].push_back({stored.box.offset, stored.box.shape, stored.file,
                                 stored.name_in_file, hash.high, hash.low});
    }
  }
  json["seconds"] = shards.seconds;
  return json.dump();
}

WrittenShards parse_shards(std::string_view text) {
  WrittenShards shards;
  try {
    const Json json = Json::parse(text);
    for (const auto& [name, file] : json.at("files").items()) {
      shards.files[name] = {.bytes = file.at(0), .xxh3_128 = {file.at(1), file.at(2)}};
    }
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      TensorRecord& record = shards.tensors[name];
      record.dtype = static_cast<DType>(tensor.at("dtype").get<int>());
      record.shape = tensor.at("shape").get<Dims>();
      for (const Json& box : tensor.at("boxes")) {
        record.boxes.push_back({.box = {box.at(0).get<Dims>(), box.at(1).get<Dims>()},
                                .file = box.at(2).get<std::string>(),
                                .name_in_file = box.at(3).get<std::string>(),
                                .xxh3_128 = Hash128{box.at(4), box.at(5)}});
      }
    }
    shards.seconds = json.at("seconds");
  } catch (const Json::exception& error) {
    fail("a writer's account of its shards cannot be read: {}", error.what());
  }
  return shards;
}

}  // namespace llmtrain::checkpoint
