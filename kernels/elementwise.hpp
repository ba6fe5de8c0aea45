#pragma once
/// Element-wise kernels: sums, casts, activation functions, dropout.

#include <algorithm>
#include <cmath>

#include "kernels/kernel.hpp"
#include "kernels/step_scalars.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain::kernels {

/// y = a + b, one dtype (fp64 | fp32 | bf16 | fp16); y may alias a or b. All may be strided.
struct Add {
  static constexpr std::string_view name = "add";
  View a, b, y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return a.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {a.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y = scale * x, or y += scale * x with `accumulate`. Dtypes: any of fp64, fp32, bf16, fp16 to any
/// of them (arithmetic in the wider of the two, at least FP32). Both may be strided. A plain cast
/// has scale 1.
struct ScaleCast {
  static constexpr std::string_view name = "scale_cast";
  View x, y;
  double scale = 1;
  bool accumulate = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y = scale * x / max(sqrt(squared_norm), eps): what SquaredNorm wrote, unseen by the host.
/// squared_norm FP64 [1]; x and y as in ScaleCast.
struct Normalize {
  static constexpr std::string_view name = "normalize";
  View x, squared_norm, y;
  double scale = 1;
  double eps = 1e-7;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
  /// The same with the number that stands in squared_norm.
  ScaleCast as_scale_cast(double squared) const {
    return {.x = x, .y = y, .scale = scale / std::max(std::sqrt(squared), eps)};
  }
};

/// y = value everywhere (fp64 | fp32 | bf16 | fp16).
struct Fill {
  static constexpr std::string_view name = "fill";
  View y;
  double value = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return y.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {y.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Activation functions; the table in kernels/activations.hpp gives each its name and formulas.
enum class Activation : std::uint8_t;

/// y = f(x), or y = f(x) * up when `up` is given (SwiGLU, GeGLU). One dtype; all may be strided.
struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  Activation activation;
  View x, up;
  View y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols(), up.defined()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// dx = dy * f'(x) (* up), dup = dy * f(x) when `up` is given. dx may alias dy (only without up).
struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  Activation activation;
  View x, up, dy;
  View dx, dup;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols(), up.defined()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y = keep ? x * (1 / (1 - p)) : 0, 0 <= p < 1. x and y may be strided. Element index =
/// row_id[row] * cols + column (row_id int64 [rows], the row's global token id), kept when its
/// uniform is >= p: independent of micro-batching and layout. The backward is the same kernel on
/// dy. y may alias x.
struct Dropout {
  static constexpr std::string_view name = "dropout";
  View x, row_id;
  View y;
  double p = 0;
  PhiloxKey key;
  std::uint64_t step = 0;
  /// Where given (StepScalars), its step counts, as it is when the kernel runs.
  View scalars;
  /// For kernels of the CPU.
  std::uint64_t step_now() const { return kernels::step_now(scalars, step); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
