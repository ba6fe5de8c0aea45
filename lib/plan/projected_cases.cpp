// Kernels of optimizers that work in subspaces of matrices.
#include "kernels/projected.hpp"
#include "kernels/quantized_subspace.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

constexpr std::int64_t kCols = 768;
constexpr std::int64_t kSide = 96;

// Of up to `kSide` vectors; beyond that only the reduction to a triangle grows. Rotations come to
// an end the sooner the more alike the lines are, so these are not.
LaunchTime top_singular_vectors(KernelBench& b, DType t, std::int64_t rows) {
  const View g = b.result(rows, kSide, t);
  std::uint32_t word = 1;
  for (std::int64_t i = 0; i < g.numel(); ++i) {
    word = word * 1664525 + 1013904223;
    g.as<float>()[i] = static_cast<float>(word >> 8) * 0x1p-24F - 0.5F;
  }
  const std::int64_t side = std::min(rows, kSide);
  return b.launch(TopSingularVectors{
      .g = g, .vectors = b.result(side, side, t), .decision = b.decision(), .gap = 1});
}

LaunchTime subspace_step(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(SubspaceStep{.g = b.input(rows, kCols, t),
                               .m = b.result(rows, kCols, t),
                               .v = b.result(rows, kCols, t),
                               .y = b.result(rows, kCols, t),
                               .decision = b.decision(),
                               .rule = {}});
}

// As above, of vectors that are far from one another: no axis takes the place of one.
LaunchTime orthonormalize(KernelBench& b, DType t, std::int64_t rows) {
  const std::int64_t count = std::min(rows, kSide);
  const View y = b.result(rows, count, t);
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    y.as<float>()[i] = i / count == i % count ? 1.0F : 0.25F / static_cast<float>(1 + i % count);
  }
  return b.launch(Orthonormalize{
      .y = y, .q = b.result(rows, count, t), .decision = b.decision(), .rounding = 1e-6});
}

LaunchTime unbiased_moments(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(UnbiasedMoments{.m = b.input(rows, kCols, t),
                                  .v = b.input(rows, kCols, t),
                                  .mean = b.result(rows, kCols, t),
                                  .variance = b.result(rows, kCols, t),
                                  .decision = b.decision()});
}

LaunchTime square_elements(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(SquareElements{.x = b.input(rows, kCols, t), .y = b.result(rows, kCols, t)});
}

LaunchTime carried_step(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(CarriedStep{.g = b.input(rows, kCols, t),
                              .carried = b.input(rows, kCols, t),
                              .variance = b.input(rows, kCols, t),
                              .m = b.result(rows, kCols, t),
                              .v = b.result(rows, kCols, t),
                              .y = b.result(rows, kCols, t),
                              .decision = b.decision(),
                              .rule = {}});
}

LaunchTime subspace_decisions(KernelBench& b, DType, std::int64_t) {
  return b.launch(SubspaceDecisions{.decision = b.decision(),
                                    .gap = b.input(1, 1, DType::f64),
                                    .step = b.result(1, UpdateDecision::kScalars, DType::f64),
                                    .choice = b.result(1, UpdateDecision::kScalars, DType::f64)});
}

LaunchTime follow_subspace(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(FollowSubspace{.vectors = b.input(rows, kCols, t),
                                 .leading = b.result(1, rows, t),
                                 .similarities = b.result(1, 5, DType::f64),
                                 .gap = b.result(1, 1, DType::f64),
                                 .decision = b.decision()});
}

LaunchTime affine_quantize(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(AffineQuantize{.x = b.input(rows, kCols, t),
                                 .codes = b.result(rows, kCols, DType::u8),
                                 .scales = b.result(rows, 1, DType::f32),
                                 .zeros = b.result(rows, 1, DType::u8),
                                 .decision = b.decision(),
                                 .group = kCols});
}

LaunchTime affine_dequantize(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(AffineDequantize{.codes = b.result(rows, kCols, DType::u8),
                                   .scales = b.result(rows, 1, DType::f32),
                                   .zeros = b.result(rows, 1, DType::u8),
                                   .y = b.result(rows, kCols, t),
                                   .group = kCols});
}

// So many bytes to a row that there are few rows, or one alone.
constexpr std::int64_t kOfOneSize = std::int64_t{8} << 20;
constexpr auto kRowCases = std::to_array<RowCase>({
    {"top_singular_vectors", kSide * 64, true, top_singular_vectors},
    {"subspace_step", kCols, true, subspace_step},
    {"orthonormalize", kSide * 64, true, orthonormalize},
    {"unbiased_moments", kCols, true, unbiased_moments},
    {"square_elements", kCols, true, square_elements},
    {"carried_step", kCols, true, carried_step},
    {"subspace_decisions", kOfOneSize, true, subspace_decisions},
    {"follow_subspace", kCols, true, follow_subspace},
    {"affine_quantize", kCols, true, affine_quantize},
    {"affine_dequantize", kCols, true, affine_dequantize},
});

}  // namespace

std::span<const RowCase> projected_row_cases() { return kRowCases; }

}  // namespace llmtrain::plan
