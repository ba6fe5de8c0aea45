#pragma once
/// Matrix products of linear layers, and the bias gradient.

#include "kernels/row_blocks.hpp"

namespace llmtrain::kernels {

enum class Activation : std::uint8_t;  // kernels/activations.hpp

/// What becomes of z = op(a) op(b) (+ bias) on its way to c, for a function f and z's own place,
/// pre:
///   none          c = z
///   activate      pre = z, c = f(z)
///   differentiate c = f'(pre) z, with pre as `activate` left it
enum class ProductEpilogue : std::uint8_t { none, activate, differentiate };

/// c = op(a) op(b) (+ bias) or c += op(a) op(b), accumulated in FP32 (FP64 for fp64).
///
/// op(a) is [m, k]: `a` is [m, k], or [k, m] when transpose_a. op(b) is [k, n]: `b` is [k, n], or
/// [n, k] when transpose_b. The three forms of a linear layer y = x w^T with w [out, in]:
///   forward          y[rows, out]  = x[rows, in] w^T        transpose_b
///   input gradient   dx[rows, in]  = dy[rows, out] w
///   weight gradient  dw[out, in]  += dy^T x                 transpose_a, accumulate
/// Dtypes (a, b -> c): fp64 -> fp64, fp32 -> fp32, bf16 -> bf16 | fp32, fp16 -> fp16 | fp32. All
/// three may be strided. bias [n] has the dtype of c or fp32, only without accumulate. k = 0 gives
/// zeros (or bias). An epilogue goes without accumulate, differentiate also without bias; whether f
/// sees z as it was summed or rounded to pre's dtype is the device's choice.
struct Matmul {
  static constexpr std::string_view name = "matmul";
  View a, b, c;
  View bias;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  ProductEpilogue epilogue = ProductEpilogue::none;
  Activation activation{};  // f
  View pre;                 // [m, n] in the dtype of c, strided

  std::int64_t m() const { return c.rows(); }
  std::int64_t n() const { return c.cols(); }
  std::int64_t k() const { return transpose_a ? a.rows() : a.cols(); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return a.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {m(), n(), k(), transpose_a ? 2 : !transpose_b};
  }
  std::uint64_t workspace_bytes(int threads) const;
};

/// For devices, and products, whose epilogue is a kernel of its own: the product up to z, which
/// goes to pre for `activate` and to c for `differentiate`, ...
Matmul without_epilogue(const Matmul& mm);
/// ... and what is left then, by the activation kernels of ctx.table.
void run_epilogue(const KernelCtx& ctx, const Matmul& mm);

/// out[j] += sum_i x[i, j]. The rows of each row block are summed in ascending order from zero,
/// then the blocks' sums are added to out in ascending order. x (strided) fp64 | fp32 | bf16 |
/// fp16; out [cols] FP64 for fp64, else FP32.
struct ColumnSum {
  static constexpr std::string_view name = "column_sum";
  View x, out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int threads) const;
};

}  // namespace llmtrain::kernels
