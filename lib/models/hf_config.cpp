#include "lib/models/hf_config.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "lib/base/require.hpp"
#include "lib/base/strict_json.hpp"
#include "lib/models/hf_config_keys.hpp"
#include "lib/models/limits.hpp"

namespace llmtrain::models {

using Json = nlohmann::json;

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
  try {
    impl_->object = Json::parse(json, StrictJson(impl_->source, kCorrect));
  } catch (const Json::exception& e) {
    fail<DataError>("{}: not valid JSON: {}; {}", impl_->source, e.what(), kCorrect);
  }
  require<DataError>(impl_->object.is_object(), "{}: expected one JSON object; {}", impl_->source,
                     kCorrect);
  ignore(kInertKeys);
  impl_->asked.emplace("model_type");  // by which hf_architecture found the family
  only("add_cross_attention", "false");
  only("is_encoder_decoder", "false");
  only("pruned_heads", "{}");
}

HfConfigReader::HfConfigReader(HfConfigReader&&) noexcept = default;
HfConfigReader::~HfConfigReader() = default;

HfConfigReader HfConfigReader::object(std::string_view key) {
  const Json* value = impl_->ask(key);
  if (value != nullptr && !value->is_object()) refuse(key, "expected an object");
  HfConfigReader inner("{}", fmt::format("{}: {}", impl_->source, key));
  // Moved: a copy would recurse as deep as the file says.
  if (value != nullptr) inner.impl_->object = std::move(impl_->object[std::string(key)]);
  return inner;
}

void HfConfigReader::refuse(std::string_view key, std::string_view problem,
                            std::string_view remedy) const {
  const auto found = impl_->object.find(key);
  std::string value = "absent";
  if (found != impl_->object.end()) {
    // Printing a container would recurse as deep as the file says.
    value = found->is_structured() ? fmt::format("an {}", found->type_name()) : found->dump();
  }
  if (value.size() > 80) value = value.substr(0, 77) + "...";
  fail<DataError>("{}: '{}' is {}: {}; {}", impl_->source, key, value, problem, remedy);
}

bool HfConfigReader::has(std::string_view key) { return impl_->ask(key) != nullptr; }

bool HfConfigReader::is_null(std::string_view key) {
  return impl_->ask(key) == nullptr && impl_->object.contains(key);
}

std::int64_t HfConfigReader::size(std::string_view key, std::int64_t max, std::int64_t fallback) {
  return integer(key, 1, max, fallback);
}

std::int64_t HfConfigReader::count(std::string_view key, std::int64_t max, std::int64_t fallback) {
  return integer(key, 0, max, fallback);
}

std::int64_t HfConfigReader::integer(std::string_view key, std::int64_t min, std::int64_t max,
                                     std::int64_t fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  const bool whole = value->is_number_unsigned();
  const std::uint64_t found = whole ? value->get<std::uint64_t>() : 0;
  if (!whole || found < static_cast<std::uint64_t>(min) ||
      found > static_cast<std::uint64_t>(max)) {
    refuse(key, fmt::format("expected an integer from {} to {}", min, max));
  }
  return static_cast<std::int64_t>(found);
}

double HfConfigReader::positive(std::string_view key, double fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : 0;
  if (!(x > 0) || !std::isfinite(x)) refuse(key, "expected a number above 0");
  return x;
}

double HfConfigReader::non_negative(std::string_view key, double fallback) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : -1;
  if (!(x >= 0) || !std::isfinite(x)) refuse(key, "expected a number of at least 0");
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

std::vector<std::string> HfConfigReader::texts(std::string_view key) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return {};
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_text)) {
    refuse(key, "expected a list of texts");
  }
  return value->get<std::vector<std::string>>();
}

std::vector<std::int64_t> HfConfigReader::counts(std::string_view key, std::int64_t max) {
  const Json* value = impl_->ask(key);
  if (value == nullptr) return {};
  const auto is_count = [&](const Json& item) {
    return item.is_number_unsigned() &&
           item.get<std::uint64_t>() <= static_cast<std::uint64_t>(max);
  };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_count)) {
    refuse(key, fmt::format("expected a list of integers from 0 to {}", max));
  }
  return value->get<std::vector<std::int64_t>>();
}

kernels::Activation HfConfigReader::activation(std::string_view key, std::string_view fallback) {
  const auto activation = kernels::parse_activation(text(key, fallback));
  if (!activation) {
    refuse(key, fmt::format("expected one of {}", fmt::join(kernels::activation_names(), ", ")),
           "choose a model with one of these");
  }
  return *activation;
}

namespace {

struct Problem {
  std::string text;  // empty: none
  std::string_view remedy = kCorrect;
};

// What a rope_scaling or rope_parameters object says; the problem, if it says anything else.
class RopeObject {
 public:
  explicit RopeObject(const Json& object) : object_(object) {}

  Problem read(double& theta, RopeScaling& scaling) {
    const std::string type = text("rope_type", text("type", "default"));
    number("rope_theta", theta);
    if (type != "default") read_scaling(type, scaling);
    for (const auto& [key, value] : object_.items()) {
      if (!value.is_null() && !asked_.contains(key)) {
        return {key + " is not implemented", kOtherModel};
      }
    }
    return problem_;
  }

 private:
  void read_scaling(const std::string& type, RopeScaling& scaling) {
    for (const RopeScalingRow& row : rope_scalings()) {
      if (row.name == type) scaling.type = row.name;
    }
    if (scaling.type != type) {
      problem_ = {"rope_type " + type + " is not implemented", kOtherModel};
      return;
    }
    required("factor", scaling.factor);
    if (scaling.factor < 1) problem_ = {"factor must be at least 1"};
    if (!has_original_length(type)) return;
    double original = 0;
    const std::string length = "original_max_position_embeddings";
    type == "llama3" ? required(length, original) : number(length, original);
    scaling.original_max_position_embeddings =
        static_cast<std::int64_t>(std::min(original, static_cast<double>(limits::kPositions)));
    if (type == "llama3") {
      required("low_freq_factor", scaling.low_freq_factor);
      required("high_freq_factor", scaling.high_freq_factor);
      if (scaling.high_freq_factor <= scaling.low_freq_factor) {
        problem_ = {"high_freq_factor must be above low_freq_factor"};
      }
      return;
    }
    number("beta_fast", scaling.beta_fast);
    number("beta_slow", scaling.beta_slow);
    if (scaling.beta_fast <= scaling.beta_slow) problem_ = {"beta_fast must be above beta_slow"};
    if (const Json* truncate = ask("truncate")) {
      if (!truncate->is_boolean()) problem_ = {"truncate: expected true or false"};
      scaling.truncate = !truncate->is_boolean() || truncate->get<bool>();
    }
    read_magnitude(scaling);
  }

  // The magnitude itself, or DeepSeek's two factors of its logarithm.
  void read_magnitude(RopeScaling& scaling) {
    double magnitude = 0, scale = 0, scale_all = 0;
    number("attention_factor", magnitude);
    number("mscale", scale);
    number("mscale_all_dim", scale_all);
    if (magnitude > 0) {
      scaling.attention_factor = magnitude;
    } else if (scale > 0 && scale_all > 0) {
      const double log_factor = 0.1 * std::log(scaling.factor);
      scaling.attention_factor = (scale * log_factor + 1) / (scale_all * log_factor + 1);
    }
  }

  const Json* ask(const std::string& key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const std::string& key, const std::string& fallback) {
    const Json* value = ask(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) {
      problem_ = {key + ": expected a text"};
      return fallback;
    }
    return value->get<std::string>();
  }
  // What transformers raises a KeyError without.
  void required(const std::string& key, double& to) {
    if (ask(key) == nullptr) problem_ = {key + " is missing"};
    number(key, to);
  }
  void number(const std::string& key, double& to) {
    const Json* value = ask(key);
    if (value == nullptr) return;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      problem_ = {key + ": expected a number above 0"};
      return;
    }
    to = value->get<double>();
  }

  const Json& object_;
  std::set<std::string> asked_;
  Problem problem_;
};

}  // namespace

double HfConfigReader::rope(double fallback, RopeScaling& scaling) {
  constexpr std::string_view kRemoveWrong = "remove the wrong one";
  double theta = positive("rope_theta", fallback);
  bool has_theta = has("rope_theta"), has_scaling = false;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = impl_->ask(key);
    if (value == nullptr) continue;
    if (!value->is_object()) refuse(key, "expected an object");
    double own_theta = 0;  // says nothing
    RopeScaling own;
    const Problem problem = RopeObject(*value).read(own_theta, own);
    if (!problem.text.empty()) refuse(key, problem.text, problem.remedy);
    if (has_theta && own_theta > 0 && own_theta != theta) {
      refuse(key, fmt::format("it says rope_theta {}, another key {}", own_theta, theta),
             kRemoveWrong);
    }
    if (has_scaling && own != scaling) {
      refuse(key, fmt::format("it says {}, rope_scaling {}", to_string(own), to_string(scaling)),
             kRemoveWrong);
    }
    if (own_theta > 0) theta = own_theta;
    has_theta = has_theta || own_theta > 0;
    scaling = own;
    has_scaling = true;
  }
  return theta;
}

void HfConfigReader::only_layer_types(const DecoderSpec& spec, std::string_view problem) {
  const std::vector<std::string> types = texts("layer_types");
  if (!types.empty() && types != layer_types(spec)) refuse("layer_types", problem, kOtherModel);
}

void HfConfigReader::only(std::string_view key, std::string_view json) {
  const Json* value = impl_->ask(key);
  if (value != nullptr && *value != Json::parse(json)) {
    refuse(key, fmt::format("only {} is implemented", json), kOtherModel);
  }
}

void HfConfigReader::ignore(std::span<const std::string_view> keys) {
  impl_->asked.insert(keys.begin(), keys.end());
}

void HfConfigReader::finish() {
  for (const auto& [key, json] : kOffValues) {
    if (!impl_->asked.contains(key)) only(key, json);
  }
  for (const auto& [key, value] : impl_->object.items()) {
    if (value.is_null() || impl_->asked.contains(key)) continue;
    refuse(key, "unknown", "if it does not change what the model computes, remove it");
  }
}

}  // namespace llmtrain::models
