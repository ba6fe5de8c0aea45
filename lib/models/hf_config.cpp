#include "lib/models/hf_config.hpp"

#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/require.hpp"

namespace llmtrain::models {

using Json = nlohmann::json;

namespace {

// transformers' PreTrainedConfig (versions 4 and 5): tokens, generation, outputs, bookkeeping.
constexpr std::string_view kInertKeys[] = {"_attn_implementation_autoset",
                                           "_commit_hash",
                                           "_from_model_config",
                                           "_name_or_path",
                                           "architectures",
                                           "bad_words_ids",
                                           "begin_suppress_tokens",
                                           "bos_token_id",
                                           "chunk_size_feed_forward",
                                           "decoder_start_token_id",
                                           "diversity_penalty",
                                           "do_sample",
                                           "dtype",
                                           "early_stopping",
                                           "encoder_no_repeat_ngram_size",
                                           "eos_token_id",
                                           "exponential_decay_length_penalty",
                                           "finetuning_task",
                                           "forced_bos_token_id",
                                           "forced_eos_token_id",
                                           "gradient_checkpointing",
                                           "id2label",
                                           "is_decoder",
                                           "label2id",
                                           "length_penalty",
                                           "max_length",
                                           "min_length",
                                           "no_repeat_ngram_size",
                                           "num_beam_groups",
                                           "num_beams",
                                           "num_return_sequences",
                                           "output_attentions",
                                           "output_hidden_states",
                                           "output_scores",
                                           "pad_token_id",
                                           "prefix",
                                           "problem_type",
                                           "remove_invalid_values",
                                           "repetition_penalty",
                                           "return_dict",
                                           "return_dict_in_generate",
                                           "sep_token_id",
                                           "suppress_tokens",
                                           "task_specific_params",
                                           "temperature",
                                           "tf_legacy_loss",
                                           "tie_encoder_decoder",
                                           "tokenizer_class",
                                           "top_k",
                                           "top_p",
                                           "torch_dtype",
                                           "torchscript",
                                           "transformers_version",
                                           "typical_p",
                                           "use_bfloat16",
                                           "use_cache"};

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

struct HfConfigReader::Impl {
  std::string source;
  Json object;
  std::set<std::string, std::less<>> asked;

  /// The key's value; null if it is absent or null.
  const Json* ask(std::string_view key) {
    asked.emplace(key);
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
};

HfConfigReader::HfConfigReader(std::string_view json, std::string source)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = std::move(source);
  impl_->object = Json::parse(json, nullptr, false);
  require<DataError>(impl_->object.is_object(), "{}: expected one JSON object", impl_->source);
  ignore(kInertKeys);
  only("add_cross_attention", "false");
  only("is_encoder_decoder", "false");
  only("pruned_heads", "{}");
}

HfConfigReader::~HfConfigReader() = default;

void HfConfigReader::refuse(std::string_view key, std::string_view problem) const {
  const auto found = impl_->object.find(key);
  std::string value = "absent";
  if (found != impl_->object.end()) {
    // Printing a container would recurse as deep as the file says.
    value = found->is_structured() ? fmt::format("an {}", found->type_name()) : found->dump();
  }
  if (value.size() > 80) value = value.substr(0, 77) + "...";
  fail<DataError>("{}: '{}' is {}: {}", impl_->source, key, value, problem);
}

bool HfConfigReader::has(std::string_view key) { return impl_->ask(key) != nullptr; }

std::int64_t HfConfigReader::size(std::string_view key, std::int64_t max, std::int64_t fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
      value->get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
    refuse(key, fmt::format("expected an integer from 1 to {}", max));
  }
  return value->get<std::int64_t>();
}

double HfConfigReader::positive(std::string_view key, double fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : 0;
  if (!(x > 0) || !std::isfinite(x)) refuse(key, "expected a number above 0");
  return x;
}

double HfConfigReader::probability(std::string_view key, double fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : -1;
  if (!(x >= 0 && x < 1)) refuse(key, "expected a number from 0 to below 1");
  return x;
}

bool HfConfigReader::flag(std::string_view key, bool fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "expected true or false");
  return value->get<bool>();
}

std::string HfConfigReader::text(std::string_view key, std::string_view fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) refuse(key, "expected a text");
  return value->get<std::string>();
}

kernels::Activation HfConfigReader::activation(std::string_view key, std::string_view fallback) {
  const auto activation = kernels::parse_activation(text(key, fallback));
  if (!activation) {
    refuse(key, fmt::format("expected one of {}", fmt::join(kernels::activation_names(), ", ")));
  }
  return *activation;
}

double HfConfigReader::rope_theta(double fallback) {
  double theta = positive("rope_theta", fallback);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = impl_->ask(key);
    if (value == nullptr) continue;
    if (!value->is_object()) refuse(key, "expected an object");
    for (const auto& [name, member] : value->items()) {
      const bool type = name == "rope_type" || name == "type";
      if (type && member == "default") continue;
      if (name != "rope_theta" || !member.is_number() || !(member.get<double>() > 0)) {
        refuse(key, "only rope_type 'default' with a rope_theta is implemented");
      }
      theta = member.get<double>();
    }
  }
  return theta;
}

void HfConfigReader::only(std::string_view key, std::string_view json) {
  const Json* value = impl_->ask(key);
  if (value != nullptr && *value != Json::parse(json)) {
    refuse(key, fmt::format("only {} is implemented", json));
  }
}

void HfConfigReader::ignore(std::span<const std::string_view> keys) {
  impl_->asked.insert(keys.begin(), keys.end());
}

void HfConfigReader::finish() const {
  for (const auto& [key, value] : impl_->object.items()) {
    if (value.is_null() || impl_->asked.contains(key)) continue;
    refuse(key, "unknown; if it does not change what the model computes, remove it");
  }
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

void HfConfigWriter::set_rope_theta(double theta) {
  set("rope_theta", theta);
  values_["rope_parameters"] = Json{{"rope_type", "default"}, {"rope_theta", theta}}.dump();
}

std::string HfConfigWriter::text() const {
  std::string lines;
  for (const auto& [key, value] : values_) {
    lines += fmt::format("{}  {}: {}", lines.empty() ? "" : ",\n", Json(key).dump(), value);
  }
  return fmt::format("{{\n{}\n}}\n", lines);
}

}  // namespace llmtrain::models
