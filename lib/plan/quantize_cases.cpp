// Launches of quantizers.
#include <array>

#include "kernels/census.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantize/quantize.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

// As of the other cases.
constexpr std::int64_t kCols = 768;

LaunchTime block_amax(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(BlockAmax{.x = b.input(rows, kCols, t), .amax = b.result(1, 1, DType::f32)});
}

LaunchTime scale_from_amax(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(ScaleFromAmax{.amax = b.input(1, rows, DType::f32),
                                .scale = b.result(1, rows, DType::f32),
                                .scale_inv = b.result(1, rows, DType::f32)});
}

LaunchTime roll_amax_history(KernelBench& b, DType, std::int64_t tensors) {
  constexpr std::int64_t kLength = 1023;
  return b.launch(RollAmaxHistory{.amax = b.input(1, tensors, DType::f32),
                                  .history = b.result(tensors, kLength, DType::f32),
                                  .scale = b.result(1, tensors, DType::f32),
                                  .scale_inv = b.result(1, tensors, DType::f32),
                                  .max = b.input(1, tensors, DType::f32)});
}

LaunchTime quantize(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Quantize{.x = b.input(rows, kCols, t),
                           .scale = b.input(1, 1, DType::f32),
                           .scale_inv = b.input(1, 1, DType::f32),
                           .codes = {},
                           .y = b.result(rows, kCols, t),
                           .saturated = {},
                           .format = kE4M3,
                           .block = {},
                           .rounding = {}});
}

LaunchTime dequantize(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Dequantize{.codes = b.result(rows, kCols, DType::u8),
                             .scale_inv = b.input(1, 1, DType::f32),
                             .y = b.result(rows, kCols, t),
                             .format = kE4M3,
                             .block = {}});
}

LaunchTime census(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Census{.x = b.input(rows, kCols, t),
                         .counts = b.result(1, Census::kBins, DType::f64),
                         .powers = b.result(1, Census::kPowers, DType::f64),
                         .amax = b.result(1, 1, DType::f64),
                         .scratch = b.result(Census::kParts, Census::kColumns, DType::f64)});
}

// Of counts.
LaunchTime column_sum_of_f64(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(
      ColumnSum{.x = b.input(rows, kCols, DType::f64), .out = b.result(1, kCols, DType::f64)});
}

constexpr auto kRowCases = std::to_array<RowCase>({
    {"block_amax", kCols, false, block_amax},
    {"scale_from_amax", 1, true, scale_from_amax},
    {"roll_amax_history", 1024, true, roll_amax_history},
    {"quantize", kCols, false, quantize},
    {"dequantize", kCols, false, dequantize},
    {"census", kCols, true, census},
    {"column_sum of fp64", 2 * kCols, true, column_sum_of_f64},
});

}  // namespace

std::span<const RowCase> quantize_row_cases() { return kRowCases; }

}  // namespace llmtrain::plan
