#pragma once
/// Rows on their way to experts and back, and the products of all experts in one launch. Legend: E
/// experts; n = rows * top_k choices, row r's being r * top_k and following; a sorted row stands
/// for a choice, and those of each expert lie together: offsets[e] up to offsets[e + 1]. The host
/// never knows how many they are.

#include <optional>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

struct Matmul;

/// Choices sorted by expert, equal ones in their order; those that are no expert's (-1) come last.
/// source[p] = the choice in place p, place[c] = the place of choice c, all int32: expert [n],
/// offsets [E + 1], source [n], place [n].
struct GroupByExpert {
  static constexpr std::string_view name = "group_by_expert";
  View expert;
  View offsets, source, place;
  std::int64_t experts() const { return offsets.numel() - 1; }
  void check() const;
  Cost cost() const;
  DType dtype() const { return DType::f32; }  // ids are int32 in a model of any type
  std::array<std::int64_t, 4> sizes() const { return {expert.numel(), experts()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y[p] = x[c / top_k] with c = source[p]; zeros behind the last expert's rows. x [rows, cols],
/// y [n, cols] in one dtype.
struct GatherRows {
  static constexpr std::string_view name = "gather_rows";
  View x, source, offsets;
  View y;
  std::int64_t top_k() const { return x.rows() == 0 ? 1 : source.numel() / x.rows(); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {source.numel(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y[r] = sum over k, ascending, of x[place[r * top_k + k]], in FP32 (FP64), rounded once. x [n,
/// cols], y [rows, cols] in one dtype.
struct CombineRows {
  static constexpr std::string_view name = "combine_rows";
  View x, place;
  View y;
  std::int64_t top_k() const { return y.rows() == 0 ? 1 : place.numel() / y.rows(); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {place.numel(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// The three products of a linear layer each of whose sorted rows meets its own expert's weight:
///   forward      c[rows of e, out]  = a[rows of e, in] b[e]^T     a = x, b = w, c = y
///   input_grad   c[rows of e, in]   = a[rows of e, out] b[e]      a = dy, b = w, c = dx
///   weight_grad  c[e, out, in]     += a[rows of e]^T b[rows of e] a = dy, b = x, c = dw
enum class GroupedProduct : std::uint8_t { forward, input_grad, weight_grad };

/// w [E, out, in], x [n, in], dy [n, out]; rows may lie apart, w and dw are contiguous. Dtypes and
/// accumulation as Matmul's: dw is fp32 (fp64), all else of one dtype. Rows behind the last
/// expert's become zeros. With `accumulate` (input_grad alone; weight_grad always adds) c += ....
struct GroupedMatmul {
  static constexpr std::string_view name = "grouped_matmul";
  View a, b, c, offsets;
  GroupedProduct product = GroupedProduct::forward;
  bool accumulate = false;
  /// Of the rows those that experts will have, where the host expects fewer: what it costs.
  std::optional<std::int64_t> expected_rows = {};
  std::int64_t experts() const { return offsets.numel() - 1; }
  /// n, out and in of the layer.
  std::int64_t rows() const { return a.rows(); }
  std::int64_t out() const { return product == GroupedProduct::forward ? c.cols() : a.cols(); }
  std::int64_t in() const {
    return product == GroupedProduct::input_grad ? c.cols()
           : product == GroupedProduct::forward  ? a.cols()
                                                 : b.cols();
  }
  /// What expert e contributes with the sorted rows [begin, end).
  Matmul of_expert(std::int64_t e, std::int64_t begin, std::int64_t end) const;
  void check() const;
  /// Of experts that all have as many rows.
  Cost cost() const;
  DType dtype() const { return a.dtype; }
  /// As Matmul has them, of the product of one expert with the mean number of rows.
  std::array<std::int64_t, 4> sizes() const;
  std::uint64_t workspace_bytes(int threads) const;
};

}  // namespace llmtrain::kernels
