#include "lib/optim/factored.hpp"

namespace llmtrain::optim {

namespace {

Tensor sums(const kernels::KernelCtx& ctx, std::int64_t count) {
  return ctx.device->allocate({count}, DType::f64, Category::workspace, "sums of matrices");
}

/// Blocks of one row, or one column, of a matrix.
Shape block_of(const Parameter& parameter, int whole_dim) {
  Shape block = parameter.global_shape();
  for (int d = 0; d < block.rank(); ++d) {
    if (d != whole_dim) block = block.with(d, 1);
  }
  return block;
}

}  // namespace

std::vector<StateSpec> factor_states(const Parameter& parameter, std::string_view row,
                                     std::string_view column) {
  const int rank = parameter.global_shape().rank();
  const DType dtype = parameter.master_dtype();
  if (rank == 1) return {{column, dtype}};
  return {{.name = row, .dtype = dtype, .block = block_of(parameter, rank - 1)},
          {.name = column, .dtype = dtype, .block = block_of(parameter, rank - 2)}};
}

std::int64_t MatrixOptimizer::indivisible(const Parameter& parameter) const {
  const Shape& box = parameter.box().shape;
  const int rank = box.rank();
  return rank > 2 ? box[rank - 2] * box[rank - 1] : 0;
}

void MatrixOptimizer::bind(Device& device, const Mesh& mesh,
                           std::span<const OptimizedParameter> parameters) {
  Optimizer::bind(device, mesh, parameters);
  mesh_ = &mesh;
}

void MatrixOptimizer::update(const kernels::KernelCtx& ctx, const View& decision) const {
  for (const OptimizedParameter& p : parameters()) update_matrices(ctx, p, decision);
}

void Factors::advance(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x,
                      const kernels::BlockMoments& advance) const {
  const kernels::Matrices& here = parts.here();
  const auto advance_by = [&](const Tensor& squares, const Tensor& moment, std::int64_t count) {
    kernels::BlockMoments op = advance;
    op.squares = squares;
    op.moment = moment;
    op.count = count;
    launch(ctx, op);
  };
  if (rows.defined()) {
    const Tensor of_rows = sums(ctx, here.count * here.rows);
    launch(ctx, kernels::BlockSquares{.g = x, .block = here.columns, .out = of_rows});
    parts.over_columns(ctx, of_rows, ReduceOp::sum);
    advance_by(of_rows, rows, parts.all_columns());
  }
  const Tensor of_columns = sums(ctx, here.count * here.columns);
  launch(ctx, kernels::ColumnSquares{.x = x, .shape = here, .out = of_columns});
  parts.over_rows(ctx, of_columns, ReduceOp::sum);
  advance_by(of_columns, columns, parts.all_rows());
}

void Factors::scale(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x,
                    bool is_gradient, const View& decision, const Tensor& y) const {
  Tensor totals;
  if (rows.defined()) {
    totals = sums(ctx, parts.here().count);
    launch(ctx, kernels::RowTotals{.x = rows, .out = totals});
    parts.over_rows(ctx, totals, ReduceOp::sum);
  }
  launch(ctx, kernels::FactoredScale{.x = x,
                                     .rows = rows,
                                     .totals = totals,
                                     .columns = columns,
                                     .shape = parts.here(),
                                     .all_rows = parts.all_rows(),
                                     .is_gradient = is_gradient,
                                     .decision = decision,
                                     .y = y});
}

Factors factors_at(const OptimizedParameter& p, std::size_t first) {
  if (p.parameter->global_shape().rank() == 1) return {.rows = {}, .columns = p.states[first]};
  return {.rows = p.states[first], .columns = p.states[first + 1]};
}

Tensor step_of(const kernels::KernelCtx& ctx, const Parameter& parameter) {
  return ctx.device->allocate({parameter.own_place().own.count}, parameter.master_dtype(),
                              Category::workspace, "step of a matrix");
}

Tensor squares_of(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x) {
  const kernels::Matrices& here = parts.here();
  const Tensor squares = sums(ctx, here.count);
  launch(ctx, kernels::BlockSquares{.g = x, .block = here.rows * here.columns, .out = squares});
  parts.over_all(ctx, squares);
  return squares;
}

Tensor master_squares_of(const kernels::KernelCtx& ctx, const PartSums& parts,
                         const OptimizedParameter& p) {
  const Tensor squares = sums(ctx, parts.here().count);
  launch(ctx, kernels::MasterSquares{.to = update_operands(p), .out = squares});
  parts.over_all(ctx, squares);
  return squares;
}

}  // namespace llmtrain::optim
