// Launches of optimizers whose states have numbers that the elements of a block share, and of noise
// on gradients.
#include <array>

#include "kernels/block_moments.hpp"
#include "kernels/eight_bit.hpp"
#include "kernels/gradient_noise.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

// As of the other cases.
constexpr std::int64_t kCols = 768;

// Blocks are rows.
LaunchTime block_squares(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(BlockSquares{
      .g = b.input(rows, kCols, t), .block = kCols, .out = b.result(1, rows, DType::f64)});
}

LaunchTime block_moments(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(BlockMoments{.squares = b.input(1, rows, DType::f64),
                               .moment = b.result(1, rows, t),
                               .decision = b.decision()});
}

LaunchTime block_adam_update(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(BlockAdamUpdate{.to = {.parameter = b.result(rows, kCols, t),
                                         .gradient = b.input(rows, kCols, t),
                                         .compute_copy = {}},
                                  .m = b.result(rows, kCols, t),
                                  .moment = b.result(1, rows, t),
                                  .decision = b.decision(),
                                  .block = kCols});
}

LaunchTime eight_bit_update(KernelBench& b, DType t, std::int64_t rows) {
  const std::int64_t blocks = dynamic_blocks(rows * kCols);
  EightBitTensors tensors{.to = {.parameter = b.result(rows, kCols, t),
                                 .gradient = b.input(rows, kCols, t),
                                 .compute_copy = {}},
                          .codes = {},
                          .scales = {}};
  for (std::size_t k = 0; k < kMaxEightBitStates; ++k) {
    tensors.codes[k] = b.result(rows, kCols, DType::u8);
    tensors.scales[k] = b.result(1, blocks, DType::f32);
  }
  return b.launch(EightBitUpdate{.tensors = std::span(&tensors, 1),
                                 .table = {},
                                 .decision = b.decision(),
                                 .rule = rules::Adam{}});
}

LaunchTime gradient_noise(KernelBench& b, DType t, std::int64_t rows) {
  const NoisyGradient gradient{.to = b.result(rows, kCols, t),
                               .words = {.on = true, .columns = rows * kCols}};
  return b.launch(GradientNoise{
      .gradients = std::span(&gradient, 1), .table = {}, .decision = b.decision(), .eta = 0.01});
}

constexpr auto kRowCases = std::to_array<RowCase>({
    {"block_squares", kCols, true, block_squares},
    {"block_moments", 1, true, block_moments},
    {"block_adam_update", kCols, true, block_adam_update},
    {"eight_bit_update", kCols, true, eight_bit_update},
    {"gradient_noise", kCols, true, gradient_noise},
});

}  // namespace

std::span<const RowCase> block_row_cases() { return kRowCases; }

}  // namespace llmtrain::plan
