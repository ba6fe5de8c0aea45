#pragma once
/// What kernels that update parameters, one or a list, ask of their operands, and what these cost.

#include "kernels/operands.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// Checks the masters, in whichever form, and the gradient, which has their dtype.
void check_update(const Operands& operands, const UpdateOperands& to);
/// What an update moves of master, copy and gradient.
Cost update_cost(const UpdateOperands& to);
/// Whether masters, gradients and copies of two parameters have the same dtypes and forms.
bool alike(const UpdateOperands& a, const UpdateOperands& b);

template <class Tensors>
std::int64_t numel_of(std::span<const Tensors> list) {
  std::int64_t numel = 0;
  for (const Tensors& t : list) numel += t.to.numel();
  return numel;
}

/// A list is not empty, and more than one tensor needs a table.
template <class Row>
void check_table(const Operands& operands, const View& table, std::size_t count) {
  operands.expects(count > 0, "at least one tensor");
  if (count > 1 || table.defined()) {
    operands.dense("table", table, table_bytes<Row>(count), {DType::u8});
  }
}

}  // namespace llmtrain::kernels
