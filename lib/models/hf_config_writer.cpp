#include <nlohmann/json.hpp>

#include "lib/base/require.hpp"
#include "lib/models/hf_config.hpp"

namespace llmtrain::models {

using Json = nlohmann::json;

namespace {

std::string_view hf_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      fail("{} is no dtype of weights", to_string(dtype));
  }
}

}  // namespace

std::vector<std::string> layer_types(const DecoderSpec& spec) {
  std::vector<std::string> types;
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    types.emplace_back(spec.window_of(i) > 0 ? "sliding_attention" : "full_attention");
  }
  return types;
}

HfConfigWriter::HfConfigWriter(std::string_view model_type, std::string_view class_name,
                               const DecoderSpec& spec, const HfExport& options) {
  set("model_type", model_type);
  values_["architectures"] = Json::array({class_name}).dump();
  // Version 5 of transformers reads dtype, version 4 torch_dtype.
  for (const char* key : {"dtype", "torch_dtype"}) set(key, hf_dtype_name(options.dtype));
  for (const auto& [key, id] : {std::pair{"bos_token_id", options.bos_token_id},
                                std::pair{"eos_token_id", options.eos_token_id},
                                std::pair{"pad_token_id", options.pad_token_id}}) {
    values_[key] = id ? Json(*id).dump() : "null";
  }
  set("initializer_range", spec.init_std);
  set("tie_word_embeddings", spec.tie_word_embeddings);
  set("use_cache", true);
  set("vocab_size", spec.vocab_size);
}

void HfConfigWriter::set(const std::string& key, std::int64_t value) {
  values_[key] = Json(value).dump();
}

void HfConfigWriter::set(const std::string& key, double value) {
  values_[key] = Json(value).dump();
}

void HfConfigWriter::set(const std::string& key, bool value) { values_[key] = Json(value).dump(); }

void HfConfigWriter::set(const std::string& key, std::string_view value) {
  values_[key] = Json(value).dump();
}

void HfConfigWriter::set(const std::string& key, std::span<const std::string> values) {
  values_[key] = Json(std::vector(values.begin(), values.end())).dump();
}

void HfConfigWriter::set(const std::string& key, std::span<const std::int64_t> values) {
  values_[key] = Json(std::vector(values.begin(), values.end())).dump();
}

void HfConfigWriter::set_null(const std::string& key) { values_[key] = "null"; }

void HfConfigWriter::set_object(const std::string& key,
                                const std::map<std::string, std::string>& values) {
  Json object = Json::object();
  for (const auto& [name, text] : values) object[name] = Json::parse(text);
  values_[key] = object.dump();
}

void HfConfigWriter::set_or_null(const std::string& key, double value) {
  value == 0 ? set_null(key) : set(key, value);
}

void HfConfigWriter::set_layer_types(const DecoderSpec& spec) {
  set("layer_types", layer_types(spec));
}

void HfConfigWriter::set_rope(const DecoderSpec& spec) {
  const RopeScaling& scaling = spec.rope_scaling;
  Json object{{"rope_type", scaling.type}};
  if (scaling.type != "default") object["factor"] = scaling.factor;
  if (has_original_length(scaling.type)) {
    object["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  if (scaling.type == "llama3") {
    object["low_freq_factor"] = scaling.low_freq_factor;
    object["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.type == "yarn") {
    object["beta_fast"] = scaling.beta_fast;
    object["beta_slow"] = scaling.beta_slow;
    object["truncate"] = scaling.truncate;
    if (scaling.attention_factor) object["attention_factor"] = *scaling.attention_factor;
  }
  set("rope_theta", spec.rope_theta);
  if (scaling.type != "default") values_["rope_scaling"] = object.dump();
  object["rope_theta"] = spec.rope_theta;
  values_["rope_parameters"] = object.dump();
}

std::string HfConfigWriter::text() const {
  std::string lines;
  for (const auto& [key, value] : values_) {
    lines += fmt::format("{}  {}: {}", lines.empty() ? "" : ",\n", Json(key).dump(), value);
  }
  return fmt::format("{{\n{}\n}}\n", lines);
}

}  // namespace llmtrain::models
