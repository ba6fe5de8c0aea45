#pragma once
/// Operands of kernel tests as doubles, and a device to run them on.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/element.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain::kernels {

/// Normal values of a named stream.
inline std::vector<double> normals(std::string_view name, std::int64_t n, double scale = 1) {
  const PhiloxKey key = philox_key(1, "test", name);
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * normal_quantile(unit_interval(philox_word(key, 0, i)));
  }
  return values;
}

/// The values that `dtype` can hold nearest to `values`.
inline std::vector<double> rounded(std::vector<double> values, DType dtype) {
  with_type(dtype, [&]<class T>() {
    for (double& x : values) x = widen(narrow<T>(x));
  });
  return values;
}

template <class T>
void fill(const View& view, const std::vector<T>& values) {
  std::copy(values.begin(), values.end(), view.as<T>());
}

/// Rows of a view, which may lie apart, from and to doubles.
inline void write_rows(const View& view, const std::vector<double>& values) {
  with_type(view.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      view.row<T>(i / view.cols())[i % view.cols()] =
          narrow<T>(values[static_cast<std::size_t>(i)]);
    }
  });
}
inline std::vector<double> read_rows(const View& view) {
  std::vector<double> values(static_cast<std::size_t>(view.numel()));
  with_type(view.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      values[static_cast<std::size_t>(i)] = widen(view.row<T>(i / view.cols())[i % view.cols()]);
    }
  });
  return values;
}

/// 0 for equal values, infinities included; infinite if one is NaN.
inline double max_abs_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double max = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;  // also equal infinities
    const double difference = std::abs(a[i] - b[i]);
    max = std::isnan(difference) ? INFINITY : std::max(max, difference);
  }
  return max;
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// A CPU with one table of kernels.
class Machine {
 public:
  explicit Machine(const KernelTable& table, int threads = 2)
      : device_(make_cpu_memory(), std::uint64_t{1} << 32),
        ctx_{&device_, &table, {}, threads, Determinism::run, nullptr} {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const KernelCtx& ctx() const { return ctx_; }

  /// Filled with NaN: what a kernel must not read and may not leave behind.
  Tensor allocate(const Shape& shape, DType dtype) {
    Tensor tensor = device_.allocate(shape, dtype, Category::activations, "operand");
    std::fill_n(tensor.view().as<std::uint8_t>(), tensor.view().bytes(), std::uint8_t{0xff});
    return tensor;
  }
  Tensor of(const Shape& shape, DType dtype, const std::vector<double>& values) {
    Tensor tensor = allocate(shape, dtype);
    write_rows(tensor, values);
    return tensor;
  }
  Tensor ints(const std::vector<std::int32_t>& values) {
    Tensor tensor = allocate({static_cast<std::int64_t>(values.size())}, DType::i32);
    fill(tensor, values);
    return tensor;
  }

 private:
  Device device_;
  KernelCtx ctx_;
};

}  // namespace llmtrain::kernels
