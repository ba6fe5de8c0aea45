#include "lib/plan/hardware_profile.hpp"

#include <array>
#include <cmath>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::plan {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 20;

// The members of one object of the file, by key; errors name the key's path.
class Fields {
 public:
  Fields(const Json& json, std::string path, std::string_view source)
      : json_(json), path_(std::move(path)), source_(source) {
    require<DataError>(json_.is_object(), "{}: {} is not an object", source_, path_);
  }

  const Json& at(const char* key) const {
    const auto member = json_.find(key);
    require<DataError>(member != json_.end(),
                       "{}: {}.{} is missing; measure again with `llmtrain doctor`", source_, path_,
                       key);
    return *member;
  }
  std::string text(const char* key) const {
    require<DataError>(at(key).is_string(), "{}: {}.{} is not a string", source_, path_, key);
    return at(key).get<std::string>();
  }
  std::uint64_t whole(const char* key, std::uint64_t limit = ~std::uint64_t{0}) const {
    require<DataError>(at(key).is_number_unsigned() && at(key).get<std::uint64_t>() <= limit,
                       "{}: {}.{} is not a whole number up to {}", source_, path_, key, limit);
    return at(key).get<std::uint64_t>();
  }
  double number(const char* key) const { return finite(at(key), key); }
  double positive(const char* key) const {
    const double value = number(key);
    require<DataError>(value > 0, "{}: {}.{} is {}, not positive", source_, path_, key, value);
    return value;
  }
  std::vector<double> numbers(const char* key) const { return list(at(key), key); }
  std::vector<std::vector<double>> lists(const char* key) const {
    require<DataError>(at(key).is_array(), "{}: {}.{} is not a list", source_, path_, key);
    std::vector<std::vector<double>> values;
    for (const Json& inner : at(key)) values.push_back(list(inner, key));
    return values;
  }

 private:
  double finite(const Json& value, const char* key) const {
    require<DataError>(value.is_number() && std::isfinite(value.get<double>()),
                       "{}: {}.{} is not a number", source_, path_, key);
    return value.get<double>();
  }
  std::vector<double> list(const Json& json, const char* key) const {
    require<DataError>(json.is_array(), "{}: {}.{} is not a list", source_, path_, key);
    std::vector<double> values;
    for (const Json& value : json) values.push_back(finite(value, key));
    return values;
  }

  const Json& json_;
  std::string path_;
  std::string_view source_;
};

MachineFacts read_machine(const Fields& fields) {
  MachineFacts machine;
  machine.host = fields.text("host");
  machine.cpu = fields.text("cpu");
  machine.instruction_set = fields.text("instruction_set");
  machine.cores = static_cast<int>(fields.whole("cores", 1 << 20));
  machine.memory_bytes = fields.whole("memory_bytes");
  machine.cache_bytes = fields.whole("cache_bytes");
  return machine;
}

void read_kernel(const Json& json, std::size_t index, std::string_view source,
                 std::map<KernelKey, KernelModel>& to) {
  const std::string path = fmt::format("kernels[{}]", index);
  const Fields fields(json, path, source);
  const std::string name = fields.text("name");
  const std::string dtype_name = fields.text("dtype");
  const std::optional<DType> dtype = parse_dtype(dtype_name);
  require<DataError>(dtype.has_value(), "{}: {}.dtype is {}, no element type", source, path,
                     dtype_name);
  const KernelKey key{name, *dtype, static_cast<std::int64_t>(fields.whole("variant", 16))};
  auto axes = fields.lists("axes");
  require<DataError>(axes.size() == num_axes(name), "{}: {}.axes has {} lists, {} needs {}", source,
                     path, axes.size(), name, num_axes(name));
  try {
    const bool is_new = to.emplace(key, KernelModel(std::move(axes), fields.numbers("work"),
                                                    fields.numbers("seconds")))
                            .second;
    require<DataError>(is_new, "{} is there twice", to_string(key));
  } catch (const DataError& error) {
    fail<DataError>("{}: {}: {}", source, path, error.what());
  }
}

void read_collective(const Json& json, std::size_t index, std::string_view source,
                     std::map<Collective, KernelModel>& to) {
  const std::string path = fmt::format("collectives[{}]", index);
  const Fields fields(json, path, source);
  const std::string name = fields.text("name");
  const std::optional<Collective> kind = parse_collective(name);
  require<DataError>(kind.has_value(), "{}: {}.name is {}, no collective", source, path, name);
  const std::vector<double> bytes = fields.numbers("bytes");
  try {
    const bool is_new =
        to.emplace(*kind, KernelModel({bytes}, bytes, fields.numbers("seconds"))).second;
    require<DataError>(is_new, "{} is there twice", name);
  } catch (const DataError& error) {
    fail<DataError>("{}: {}: {}", source, path, error.what());
  }
}

const Json& list_of(const Json& json, const char* key, std::string_view source) {
  static const Json kNone = Json::array();
  if (!json.contains(key)) return kNone;
  require<DataError>(json[key].is_array(), "{}: profile.{} is not a list", source, key);
  return json[key];
}

}  // namespace

double HardwareProfile::peak_flops(DType compute, bool tf32) const {
  if (tf32) return peak_tf32_flops;
  if (compute == DType::f32) return peak_fp32_flops;
  if (compute == DType::bf16) return peak_bf16_flops;
  // A GPU's tensor cores take either type of 16 bits at one rate; a CPU multiplies fp16 in fp32.
  if (compute == DType::f16) return device == DeviceKind::cpu ? peak_fp32_flops : peak_bf16_flops;
  return 0;
}

std::string to_json(const HardwareProfile& profile) {
  Json json;
  json["format"] = kFormat;
  json["machine"] = {{"host", profile.machine.host},
                     {"cpu", profile.machine.cpu},
                     {"instruction_set", profile.machine.instruction_set},
                     {"cores", profile.machine.cores},
                     {"memory_bytes", profile.machine.memory_bytes},
                     {"cache_bytes", profile.machine.cache_bytes}};
  json["threads"] = profile.threads;
  json["peak_fp32_flops"] = profile.peak_fp32_flops;
  json["peak_bf16_flops"] = profile.peak_bf16_flops;
  json["memory_bytes_per_second"] = profile.memory_bytes_per_second;
  json["launch_seconds"] = profile.launch_seconds;
  json["noise"] = profile.noise;
  json["kernels"] = Json::array();
  for (const auto& [key, model] : profile.kernels) {
    json["kernels"].push_back({{"name", key.name},
                               {"dtype", to_string(key.dtype)},
                               {"variant", key.variant},
                               {"axes", model.axes()},
                               {"work", model.work()},
                               {"seconds", model.seconds()}});
  }
  if (profile.ranks == 1) return json.dump() + "\n";
  json["ranks"] = profile.ranks;
  for (const auto& [kind, model] : profile.collectives) {
    json["collectives"].push_back(
        {{"name", to_string(kind)}, {"bytes", model.axes().front()}, {"seconds", model.seconds()}});
  }
  return json.dump() + "\n";
}

HardwareProfile parse_profile(std::string_view text, std::string_view source) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail<DataError>("{}: {}; measure again with `llmtrain doctor`", source, error.what());
  }
  const Fields fields(json, "profile", source);
  require<DataError>(fields.whole("format") == kFormat,
                     "{}: profile.format is {}, this build reads {}; measure again with `llmtrain "
                     "doctor`",
                     source, fields.whole("format"), kFormat);
  HardwareProfile profile;
  profile.machine = read_machine(Fields(fields.at("machine"), "machine", source));
  profile.threads = static_cast<int>(fields.whole("threads", 1 << 20));
  profile.peak_fp32_flops = fields.positive("peak_fp32_flops");
  profile.peak_bf16_flops = fields.positive("peak_bf16_flops");
  profile.memory_bytes_per_second = fields.positive("memory_bytes_per_second");
  profile.launch_seconds = fields.positive("launch_seconds");
  profile.noise = fields.number("noise");
  fields.at("kernels");
  const Json& kernels = list_of(json, "kernels", source);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    read_kernel(kernels[i], i, source, profile.kernels);
  }
  if (json.contains("ranks")) profile.ranks = static_cast<int>(fields.whole("ranks", 1 << 20));
  require<DataError>(profile.ranks > 0, "{}: profile.ranks is 0", source);
  const Json& collectives = list_of(json, "collectives", source);
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    read_collective(collectives[i], i, source, profile.collectives);
  }
  return profile;
}

HardwareProfile load_profile(const std::filesystem::path& path) {
  return parse_profile(read_file(path, kMaxFileBytes), path.string());
}

std::filesystem::path default_profile_path(int ranks) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string of = ranks == 1 ? "" : fmt::format("-{}-ranks", ranks);
  return user_cache_directory() / fmt::format("profile-{}{}.json", host.data(), of);
}

std::optional<HardwareProfile> load_default_profile(int ranks) {
  const std::filesystem::path path = default_profile_path(ranks);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return load_profile(path);
}

}  // namespace llmtrain::plan
