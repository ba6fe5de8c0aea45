#pragma once

#include "lib/tensor/dtype.hpp"

namespace llmtrain::test {

/// How far a number lies from what it is rounded to, at most and relative to it; that of FP32 for
/// FP64, whose own nobody measures.
constexpr double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

}  // namespace llmtrain::test
