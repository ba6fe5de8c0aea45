#pragma once
/// Rows on their way to the experts of other ranks, as many to each of them whatever was chosen, so
/// that no host need know how many there are. Legend: E experts, E / r on each of r ranks; n sorted
/// rows (GroupByExpert), of which those for rank m have S slots, m * S and following.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// In slot s is sorted row source[s] for expert expert[s] of those that the slot's rank has, both
/// -1 where it stays empty; sorted row p has slot place[p]. The rows of a rank are in its slots in
/// their order. All int32: offsets [E + 1], source and expert [r S], place [n].
struct AssignSlots {
  static constexpr std::string_view name = "assign_slots";
  static constexpr std::int32_t kEmpty = -1;   // behind the last expert's rows
  static constexpr std::int32_t kNoSlot = -2;  // behind the last slot of the row's rank
  View offsets;
  View source, expert, place;
  /// FP64, one number, or absent. Where a rank has more rows than slots it becomes the larger of
  /// itself and the number of that rank's rows, divided by `even_rows`.
  View needed;
  std::int64_t ranks = 1;
  double even_rows = 1;
  std::int64_t experts_of_rank() const { return (offsets.numel() - 1) / ranks; }
  std::int64_t slots() const { return source.numel() / ranks; }
  void check() const;
  Cost cost() const;
  DType dtype() const { return DType::f32; }  // places are int32 in a model of any type
  std::array<std::int64_t, 4> sizes() const { return {place.numel(), source.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// y[i] = x[from[i]]; zeros where from[i] is AssignSlots::kEmpty, NaN where it is kNoSlot: what
/// could not be sent must not pass for a result. x [rows, cols], y [n, cols] in one dtype; from
/// int32 [n].
struct TakeRows {
  static constexpr std::string_view name = "take_rows";
  View x, from;
  View y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {y.rows(), y.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
