#include "lib/tensor/dtype.hpp"

#include <array>
#include <utility>

namespace llmtrain {

namespace {
constexpr std::array<std::pair<DType, std::string_view>, 9> kNames{{{DType::f64, "fp64"},
                                                                    {DType::f32, "fp32"},
                                                                    {DType::bf16, "bf16"},
                                                                    {DType::f16, "fp16"},
                                                                    {DType::i64, "int64"},
                                                                    {DType::i32, "int32"},
                                                                    {DType::u32, "uint32"},
                                                                    {DType::u16, "uint16"},
                                                                    {DType::u8, "uint8"}}};
}

std::string_view to_string(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
  }
  return std::nullopt;
}

}  // namespace llmtrain
