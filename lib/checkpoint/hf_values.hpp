#pragma once
/// Element types of weight files against those of masters (FP32, FP64).

#include <cstddef>
#include <span>
#include <vector>

#include "lib/checkpoint/safetensors.hpp"

namespace llmtrain::checkpoint {

/// F64, F32, F16 or BF16.
bool is_weight_type(StoredType type);

/// Values of such a type as float or double: exact, but for F64 as float.
template <class T>
std::vector<T> decode(StoredType type, std::span<const std::byte> bytes);

/// Values rounded to nearest, ties to even. `type` is F64, F32, BF16 or F16 (the
/// latter two through FP32). DataError for a number that is beyond F16.
template <class T>
std::vector<std::byte> encode(StoredType type, std::span<const T> values);

}  // namespace llmtrain::checkpoint
