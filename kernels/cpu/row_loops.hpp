#pragma once
/// Loops over rows of FP64 numbers.

#include <cstdint>

namespace llmtrain::kernels {

/// The loops over neighbouring numbers, which the reference and the fast path have each of its own;
/// both add up in the same order, so the bits are the same.
struct RowLoops {
  static constexpr int kLanes = 8;
  /// The most that reflect() is called with.
  static constexpr std::int64_t kColumns = 256;

  struct Products {
    double pp = 0, qq = 0, pq = 0;
  };
  /// Of two rows with themselves and each other. Element i adds to lane i % kLanes, and the lanes
  /// are joined in order.
  Products (*products)(const double* p, const double* q, std::int64_t n);
  /// (p, q) = (c p - s q, s p + c q).
  void (*turn)(double* p, double* q, double c, double s, std::int64_t n);

  /// 1 - tau w w^T of a column: w is `first` in one row and v in `count` lines, `stride` apart.
  struct Reflection {
    const double* v;
    double first, tau;
    std::int64_t count, stride;
  };
  /// Of `width` neighbouring columns.
  void (*reflect)(const Reflection& by, double* row, double* lines, std::int64_t width);
};

}  // namespace llmtrain::kernels
