#pragma once
/// A non-owning window on device memory: what kernels see.

#include <cstdint>

#include "lib/tensor/dtype.hpp"
#include "lib/tensor/shape.hpp"

namespace llmtrain {

/// Row-major data with innermost stride 1 in which only the row stride may exceed the row: all dims
/// but the innermost form one sequence of rows, `row_stride` elements apart. On the meta device
/// `data` is an address of the imaginary arena and must not be read or written.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t row_stride = 0;

  /// False for an operand that is absent.
  bool defined() const { return data != nullptr; }
  std::int64_t numel() const { return shape.numel(); }
  std::int64_t rows() const { return shape.rows(); }
  std::int64_t cols() const { return shape.cols(); }
  bool contiguous() const { return row_stride == shape.cols() || shape.rows() <= 1; }
  /// Bytes of the elements, without the gaps between strided rows.
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(numel()) * size_of(dtype); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(std::int64_t i) const {
    return static_cast<T*>(data) + i * row_stride;
  }
};

}  // namespace llmtrain
