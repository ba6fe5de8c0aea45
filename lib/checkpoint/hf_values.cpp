#include "lib/checkpoint/hf_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

namespace {

template <class T>
f16 checked_f16(T x) {
  const f16 rounded = to_f16(static_cast<float>(x));
  require<DataError>(
      !std::isfinite(x) || std::isfinite(to_float(rounded)),
      "a weight of {} is beyond fp16, whose largest number is {}: write bf16 or fp32", x, kMaxF16);
  return rounded;
}

template <class To, class From, class Convert>
std::vector<To> convert(std::span<const std::byte> bytes, const Convert& one) {
  require(bytes.size() % sizeof(From) == 0, "{} bytes are no whole number of elements",
          bytes.size());
  std::vector<To> values(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < values.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    values[i] = one(value);
  }
  return values;
}

template <class To, class T, class Convert>
std::vector<std::byte> converted_bytes(std::span<const T> values, const Convert& one) {
  std::vector<std::byte> bytes(values.size() * sizeof(To));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const To value = one(values[i]);
    std::memcpy(bytes.data() + i * sizeof(To), &value, sizeof(To));
  }
  return bytes;
}

}  // namespace

bool is_weight_type(StoredType type) {
  return type == StoredType::f64 || type == StoredType::f32 || type == StoredType::f16 ||
         type == StoredType::bf16;
}

template <class T>
std::vector<T> decode(StoredType type, std::span<const std::byte> bytes) {
  switch (type) {
    case StoredType::f64:
      return convert<T, double>(bytes, [](double x) { return static_cast<T>(x); });
    case StoredType::f32:
      return convert<T, float>(bytes, [](float x) { return static_cast<T>(x); });
    case StoredType::f16:
      return convert<T, f16>(bytes, [](f16 x) { return to_float(x); });
    case StoredType::bf16:
      return convert<T, bf16>(bytes, [](bf16 x) { return to_float(x); });
    default:
      fail("{} is no type of weights", to_string(type));
  }
}

template <class T>
std::vector<std::byte> encode(StoredType type, std::span<const T> values) {
  switch (type) {
    case StoredType::f64:
      return converted_bytes<double>(values, [](T x) { return static_cast<double>(x); });
    case StoredType::f32:
      return converted_bytes<float>(values, [](T x) { return static_cast<float>(x); });
    case StoredType::f16:
      return converted_bytes<f16>(values, [](T x) { return checked_f16(x); });
    case StoredType::bf16:
      return converted_bytes<bf16>(values, [](T x) { return to_bf16(static_cast<float>(x)); });
    default:
      fail("weights are not written as {}", to_string(type));
  }
}

template std::vector<float> decode<float>(StoredType, std::span<const std::byte>);
template std::vector<double> decode<double>(StoredType, std::span<const std::byte>);
template std::vector<std::byte> encode<float>(StoredType, std::span<const float>);
template std::vector<std::byte> encode<double>(StoredType, std::span<const double>);

}  // namespace llmtrain::checkpoint
