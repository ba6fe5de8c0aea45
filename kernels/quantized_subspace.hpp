#pragma once
/// What Q-GaLore (arXiv 2407.08296) has beyond GaLore: a subspace is chosen the less often the less
/// it turns, and its vectors are codes of a few bits.

#include <algorithm>
#include <cmath>

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// Two decisions made of a step's:
/// - `step` is that of the same update at lr 1, of gradients that are clipped already.
/// - `choice` applies where the subspace is chosen anew: in the first update, and in those whose
///   number, counted from 0, is a multiple of `gap`, FP64 [1], as it is now.
/// Neither applies where `decision` does not.
struct SubspaceDecisions {
  static constexpr std::string_view name = "subspace_decisions";
  View decision, gap, step, choice;
  void check() const;
  Cost cost() const;
  DType dtype() const { return decision.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {decision.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  static constexpr UpdateDecision at_unit_rate(UpdateDecision d) {
    d.lr = 1;
    d.grad_scale = 1;
    return d;
  }
  static UpdateDecision of_choice(UpdateDecision d, double gap) {
    if (std::fmod(d.updates - 1, gap) != 0) d.apply = 0;
    return d;
  }
};

/// How far a subspace has turned since it was last chosen, and how long it will stay. `vectors` are
/// new, of rows or columns; `leading` [n] is the first of them last time. In each update but the
/// first the first vector takes the sign by which it is nearer to that, and the cosine of the angle
/// between the two joins `similarities`, FP64 [queue], of which the oldest, which comes first, is
/// dropped; slots without one hold kNone. Where none does and their mean is at least `threshold`,
/// `gap`, FP64 [1], grows by `growth`, rounded down. Then `leading` is the new first vector.
/// `vectors` and `leading` FP32 | FP64, of one dtype. Where the decision does not apply, nothing is
/// written. `apart` is that of TopSingularVectors.
struct FollowSubspace {
  static constexpr std::string_view name = "follow_subspace";
  /// No cosine.
  static constexpr double kNone = -2;
  /// The least length that a cosine is divided by: torch.nn.functional.cosine_similarity.
  static constexpr double kLeastLength = 1e-8;
  View vectors, leading, similarities, gap, decision;
  bool of_rows = false;
  double threshold = 0, growth = 1;
  std::int64_t apart = 1;
  void check() const;
  Cost cost() const;
  DType dtype() const { return vectors.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {leading.numel(), similarities.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// From one element of the first vector to the next.
  std::int64_t stride() const { return of_rows ? 1 : vectors.cols(); }
};

/// Elements of x in row-major order, FP32 | FP64 [n], in groups of `group` (the last may be
/// shorter), rounded to FP32 and coded as whole numbers of `bits` bits. Of a group, in FP32:
///   scale = max(largest - smallest, 1e-5) / (2^bits - 1), zero = clamp(-round(smallest / scale)),
///   code = clamp(round(x / scale) + zero),
/// where clamp is to [0, 2^bits - 1] and round takes a half to even; a code stands for scale (code
/// - zero). (What lies outside of a range that reaches zero from the group's numbers is cut off.)
/// `codes` uint8 [n], `scales` FP32 and `zeros` uint8 [groups]. Where the decision does not apply,
/// nothing is written. `apart` is that of TopSingularVectors.
struct AffineQuantize {
  static constexpr std::string_view name = "affine_quantize";
  static constexpr float kLeastRange = 1e-5F;
  View x, codes, scales, zeros, decision;
  int bits = 8;
  std::int64_t group = 1, apart = 1;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y = what codes of AffineQuantize stand for, FP32 | FP64 [n].
struct AffineDequantize {
  static constexpr std::string_view name = "affine_dequantize";
  View codes, scales, zeros, y;
  std::int64_t group = 1;
  void check() const;
  Cost cost() const;
  DType dtype() const { return y.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {y.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Groups of so many elements.
constexpr std::int64_t affine_groups(std::int64_t numel, std::int64_t group) {
  return (numel + group - 1) / group;
}

}  // namespace llmtrain::kernels
