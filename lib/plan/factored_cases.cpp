// Launches of optimizers whose second moments are those of rows and columns: of one matrix, on
// which time per byte hardly depends.
#include <array>

#include "kernels/factored.hpp"
#include "lib/plan/kernel_cases.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

// As of the other cases.
constexpr std::int64_t kCols = 768;

Matrices matrix(std::int64_t rows) { return {.count = 1, .rows = rows, .columns = kCols}; }

LaunchTime column_squares(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ColumnSquares{
      .x = b.input(rows, kCols, t), .shape = matrix(rows), .out = b.result(1, kCols, DType::f64)});
}

LaunchTime row_totals(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(RowTotals{.x = b.input(1, rows, t), .out = b.result(1, 1, DType::f64)});
}

LaunchTime master_squares(KernelBench& b, DType t, std::int64_t rows) {
  const View masters = b.input(rows, kCols, t);
  return b.launch(
      MasterSquares{.to = {.parameter = masters, .gradient = masters, .compute_copy = {}},
                    .out = b.result(1, 1, DType::f64)});
}

LaunchTime factored_scale(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(FactoredScale{.x = b.input(rows, kCols, t),
                                .rows = b.input(1, rows, t),
                                .totals = b.input(1, 1, DType::f64),
                                .columns = b.input(1, kCols, t),
                                .shape = matrix(rows),
                                .all_rows = rows,
                                .decision = b.decision(),
                                .y = b.result(rows, kCols, t)});
}

LaunchTime matrix_step_update(KernelBench& b, DType t, std::int64_t rows) {
  const View u = b.input(rows, kCols, t);
  return b.launch(MatrixStepUpdate{
      .to = {.parameter = b.result(rows, kCols, t), .gradient = u, .compute_copy = {}},
      .u = u,
      .m = {},
      .clip = {},
      .decision = b.decision()});
}

LaunchTime came_moment(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(CameMoment{.u = b.result(rows, kCols, t),
                             .m = b.result(rows, kCols, t),
                             .clip = {},
                             .decision = b.decision()});
}

LaunchTime cover_maxima(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(CoverMaxima{.g = b.input(rows, kCols, t),
                              .rows = b.input(1, rows, t),
                              .columns = b.input(1, kCols, t),
                              .shape = matrix(rows),
                              .decision = b.decision(),
                              .new_rows = b.result(1, rows, t),
                              .new_columns = b.result(1, kCols, t)});
}

LaunchTime cover_scale(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(CoverScale{.g = b.input(rows, kCols, t),
                             .rows = b.input(1, rows, t),
                             .columns = b.input(1, kCols, t),
                             .shape = matrix(rows),
                             .decision = b.decision(),
                             .u = b.result(rows, kCols, t)});
}

constexpr auto kRowCases = std::to_array<RowCase>({
    {"column_squares", kCols, true, column_squares},
    {"row_totals", 1, true, row_totals},
    {"master_squares", kCols, true, master_squares},
    {"factored_scale", kCols, true, factored_scale},
    {"matrix_step_update", kCols, true, matrix_step_update},
    {"came_moment", kCols, true, came_moment},
    {"cover_maxima", kCols, true, cover_maxima},
    {"cover_scale", kCols, true, cover_scale},
});

}  // namespace

std::span<const RowCase> factored_row_cases() { return kRowCases; }

}  // namespace llmtrain::plan
