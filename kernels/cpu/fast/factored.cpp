#include "kernels/factored.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/factored.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/fast/matrix_tiles.hpp"
#include "kernels/cpu/fast/run_sums.hpp"
#include "kernels/cpu/fast/squares-inl.h"
#include "kernels/cpu/rows.hpp"

// No fused multiply-add and no approximate root: every instruction set has the reference's bits.
// RowTotals, of one number per row, is the reference's.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Of `count` neighbouring columns of one matrix, whose rows lie `stride` apart. The compiler makes
/// vectors of these loops.
void column_squares(const float* x, std::int64_t rows, std::int64_t stride, std::int64_t count,
                    double* HWY_RESTRICT out) {
  double of_chunk[kTileColumns];
  std::fill_n(out, count, 0.0);
  for (std::int64_t first = 0; first < rows; first += ColumnSquares::kChunk) {
    std::fill_n(of_chunk, count, 0.0);
    const std::int64_t end = std::min(rows, first + ColumnSquares::kChunk);
    for (std::int64_t i = first; i < end; ++i) {
      const float* row = x + i * stride;
      for (std::int64_t j = 0; j < count; ++j) {
        const auto value = static_cast<double>(row[j]);
        of_chunk[j] += value * value;
      }
    }
    for (std::int64_t j = 0; j < count; ++j) out[j] += of_chunk[j];
  }
}

double master_squares(const UpdateOperands& to, const Segment& at) {
  Masters masters(to, 0, at);
  return squared_norm(masters.data(), at.count);
}

void factored_scale(const FactoredScale& op, float grad_scale, const Tile& tile) {
  const V scale = constant(grad_scale), one = constant(1);
  const float* columns = tile.of_columns<float>(op.columns);
  float of_columns[kTileColumns];
  for_vectors(tile.columns, [&](std::int64_t j, auto lanes) HWY_ATTR {
    store(hn::Div(one, hn::Sqrt(load(columns + j, lanes))), of_columns + j, lanes);
  });
  const float* rows = op.rows.defined() ? tile.of_rows<float>(op.rows) : nullptr;
  const auto mean =
      rows != nullptr ? static_cast<float>(op.mean(op.totals.as<double>()[tile.matrix])) : 1.0f;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const V row = constant(rows != nullptr ? FactoredScale::row_factor(rows[i], mean) : 1.0f);
    const float* x = tile.row<float>(op.x, i);
    float* y = tile.row<float>(op.y, i);
    for_vectors(tile.columns, [&](std::int64_t j, auto lanes) HWY_ATTR {
      const V of_row = hn::Mul(hn::Mul(load(x + j, lanes), scale), row);
      store(hn::Mul(of_row, load(of_columns + j, lanes)), y + j, lanes);
    });
  }
}

/// The elements of one pass that are of one matrix; m may be null.
void step_run(const MatrixStepScalars<float>& s, std::int64_t count, float* parameter,
              const float* steps, float* m) {
  const V before = constant(s.kept_before), after = constant(s.kept_after);
  const V rate = constant(s.rate);
  const V beta1 = constant(s.beta1), one_minus_beta1 = constant(s.one_minus_beta1);
  for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V kept = hn::Mul(load(parameter + i, lanes), before);
    const V u = load(steps + i, lanes);
    V lost;
    if (m == nullptr) {
      lost = hn::Mul(rate, u);
    } else {
      const V v = s.rate_in_moment ? hn::Mul(rate, u) : u;
      const V m_new = hn::Add(hn::Mul(beta1, load(m + i, lanes)), hn::Mul(one_minus_beta1, v));
      store(m_new, m + i, lanes);
      lost = s.rate_in_moment ? m_new : hn::Mul(rate, m_new);
    }
    store(hn::Mul(hn::Sub(kept, lost), after), parameter + i, lanes);
  });
}

void matrix_step_update(const MatrixStepUpdate& op, const Segment& at) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  Masters masters(op.to, static_cast<std::uint64_t>(decision.updates), at);
  const float* u = at.of<float>(op.u);
  float* m = op.m.defined() ? at.of<float>(op.m) : nullptr;
  for_matrices(at, op.each(), [&](std::int64_t k, std::int64_t i, std::int64_t count) HWY_ATTR {
    const MatrixStepScalars<float> s(op, decision, op.factor_of(k));
    step_run(s, count, masters.data() + i, u + i, m == nullptr ? nullptr : m + i);
  });
  masters.write();
}

void came_moment(const CameMoment& op, const Segment& at) {
  const V beta1 = constant(op.beta1), one_minus_beta1 = constant(1 - op.beta1);
  float* u = at.of<float>(op.u);
  float* m = at.of<float>(op.m);
  const std::int64_t each = op.u.numel() / op.matrices;
  for_matrices(at, each, [&](std::int64_t k, std::int64_t first, std::int64_t count) HWY_ATTR {
    const V divisor = constant(op.clip.divisor_of(k));
    for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      const V clipped = hn::Div(load(u + first + i, lanes), divisor);
      const V kept = hn::Mul(beta1, load(m + first + i, lanes));
      const V m_new = hn::Add(kept, hn::Mul(one_minus_beta1, clipped));
      store(m_new, m + first + i, lanes);
      store(hn::Sub(clipped, m_new), u + first + i, lanes);
    });
  });
}

/// As covered(); without a bound of the row `row` is infinite.
HWY_INLINE V covered(V row, V column, V g) {
  return hn::Add(hn::IfThenElse(hn::Lt(row, column), row, column), hn::Mul(g, g));
}

/// Of a tile of whole rows: writes their new bounds and raises those of `new_columns`.
void cover_maxima(const CoverMaxima& op, float grad_scale, const Tile& tile, float* new_columns) {
  const V scale = constant(grad_scale);
  const float* columns = tile.of_columns<float>(op.columns);
  const float* rows = op.rows.defined() ? tile.of_rows<float>(op.rows) : nullptr;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const float* g = tile.row<float>(op.g, i);
    const V row = constant(rows != nullptr ? rows[i] : kNoBound);
    V largest = hn::Zero(F());
    for_vectors(tile.columns, [&](std::int64_t j, auto lanes) HWY_ATTR {
      const V bound = covered(row, load(columns + j, lanes), hn::Mul(load(g + j, lanes), scale));
      largest = hn::Max(largest, bound);  // where no element is, the bound is 0
      store(hn::Max(load(new_columns + j, lanes), bound), new_columns + j, lanes);
    });
    if (rows != nullptr) {
      tile.of_rows<float>(op.new_rows)[i] = hn::GetLane(hn::MaxOfLanes(F(), largest));
    }
  }
}

void cover_scale(const CoverScale& op, float grad_scale, const Tile& tile) {
  const V scale = constant(grad_scale), eps = constant(op.eps), one = constant(1);
  const float* columns = tile.of_columns<float>(op.columns);
  const float* rows = op.rows.defined() ? tile.of_rows<float>(op.rows) : nullptr;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const float* from = tile.row<float>(op.g, i);
    float* u = tile.row<float>(op.u, i);
    const V row = constant(rows != nullptr ? rows[i] : kNoBound);
    for_vectors(tile.columns, [&](std::int64_t j, auto lanes) HWY_ATTR {
      const V g = hn::Mul(load(from + j, lanes), scale);
      const V bound = covered(row, load(columns + j, lanes), g);
      store(hn::Mul(g, hn::Div(one, hn::Sqrt(hn::Add(bound, eps)))), u + j, lanes);
    });
  }
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(column_squares);
HWY_EXPORT(master_squares);
HWY_EXPORT(factored_scale);
HWY_EXPORT(matrix_step_update);
HWY_EXPORT(came_moment);
HWY_EXPORT(cover_maxima);
HWY_EXPORT(cover_scale);

namespace {

void run_column_squares(const KernelCtx& ctx, const ColumnSquares& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const Matrices& shape = op.shape;
  const Tiles tiles = strips(shape, ctx.threads);
  parallel_blocks(ctx.threads, tiles.count(), 1, [&](std::int64_t strip, std::int64_t) {
    const Tile at = tiles[strip];
    HWY_DYNAMIC_DISPATCH(column_squares)
    (at.row<float>(op.x, 0), shape.rows, shape.columns, at.columns, at.of_columns<double>(op.out));
  });
}

void run_master_squares(const KernelCtx& ctx, const MasterSquares& op, const View& workspace) {
  if (op.to.master_dtype() == DType::f64) return run_reference(ctx, op, workspace);
  sum_runs(ctx.threads, op.each(), op.out, workspace,
           [&](const Segment& at) { return HWY_DYNAMIC_DISPATCH(master_squares)(op.to, at); });
}

void run_factored_scale(const KernelCtx& ctx, const FactoredScale& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const auto scale = static_cast<float>(op.is_gradient ? decision.grad_scale : 1);
  parallel_tiles(ctx.threads, op.shape, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(factored_scale)(op, scale, tile);
  });
}

void run_matrix_step_update(const KernelCtx& ctx, const MatrixStepUpdate& op,
                            const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  parallel_passes(ctx.threads, op.to.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(matrix_step_update)(op, at);
  });
}

void run_came_moment(const KernelCtx& ctx, const CameMoment& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  parallel_passes(ctx.threads, op.u.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(came_moment)(op, at);
  });
}

void run_cover_maxima(const KernelCtx& ctx, const CoverMaxima& op, const View& workspace) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (op.dtype() == DType::f64 || !decision.applies()) return run_reference(ctx, op, workspace);
  const auto scale = static_cast<float>(decision.grad_scale);
  const std::int64_t all = op.columns.numel();
  auto* const first = op.new_columns.as<float>();
  auto* const others = workspace.as<float>();
  const auto of_slot = [&](int slot) { return slot == 0 ? first : others + (slot - 1) * all; };
  std::fill_n(first, all, 0.0f);
  if (ctx.threads > 1) std::fill_n(others, (ctx.threads - 1) * all, 0.0f);
  const Tiles tiles = row_tiles(op.shape);
  parallel_tasks(ctx.threads, tiles.count(), [&](int slot, std::int64_t task) {
    const Tile tile = tiles[task];
    HWY_DYNAMIC_DISPATCH(cover_maxima)
    (op, scale, tile, of_slot(slot) + tile.matrix * op.shape.columns);
  });
  parallel_blocks(ctx.threads, all, kPass, [&](std::int64_t begin, std::int64_t end) {
    for (int slot = 1; slot < ctx.threads; ++slot) {
      const float* seen = of_slot(slot);
      for (std::int64_t j = begin; j < end; ++j) first[j] = std::max(first[j], seen[j]);
    }
  });
}

void run_cover_scale(const KernelCtx& ctx, const CoverScale& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const auto scale = static_cast<float>(decision.grad_scale);
  parallel_tiles(ctx.threads, op.shape, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(cover_scale)(op, scale, tile);
  });
}

}  // namespace

void add_factored_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ColumnSquares, run_column_squares>());
  rows.push_back(row_of<MasterSquares, run_master_squares>());
  rows.push_back(row_of<FactoredScale, run_factored_scale>());
  rows.push_back(row_of<MatrixStepUpdate, run_matrix_step_update>());
  rows.push_back(row_of<CameMoment, run_came_moment>());
  rows.push_back(row_of<CoverMaxima, run_cover_maxima>());
  rows.push_back(row_of<CoverScale, run_cover_scale>());
}

}  // namespace llmtrain::kernels::fast
#endif
