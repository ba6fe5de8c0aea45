#pragma once
/// Shapes of at most five dims, row-major.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace llmtrain {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t d : dims) dims_[rank_++] = d;
  }
  /// InternalError beyond kMaxRank or for a negative dim.
  explicit Shape(std::span<const std::int64_t> dims);

  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return dims_[i]; }
  constexpr std::span<const std::int64_t> dims() const {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }
  constexpr std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  /// Innermost dim (1 for a scalar).
  constexpr std::int64_t cols() const { return rank_ == 0 ? 1 : dims_[rank_ - 1]; }
  /// Product of all dims but the innermost.
  constexpr std::int64_t rows() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank_; ++i) n *= dims_[i];
    return n;
  }
  /// The same shape with dim `i` replaced.
  constexpr Shape with(int i, std::int64_t size) const {
    Shape s = *this;
    s.dims_[i] = size;
    return s;
  }
  constexpr bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (dims_[i] != other.dims_[i]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// "[4, 256, 768]".
std::string to_string(const Shape& shape);

}  // namespace llmtrain
