#pragma once
/// Kernel problems that run on the CPU's tables and on a GPU: operands are made on the host, sent,
/// and read back.

#include <cmath>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/operands.hpp"
#include "lib/base/philox.hpp"
#include "tests/support/rounding.hpp"

namespace llmtrain::kernels::gpu_trial {

using Values = std::vector<double>;

/// What everything random in these tests is drawn from (main.cpp): LLMTRAIN_TEST_SEED, or 1.
inline std::uint64_t& test_seed() {
  static std::uint64_t seed = 1;
  return seed;
}

/// The GPU under test; the tests end before they begin where there is none.
inline const Backend& gpu() { return *load_backend(DeviceKind::cuda).backend; }

enum class Place : std::uint8_t { reference, gpu };

/// A device of either place. It computes in `compute`, on operands whose values `operand` can hold,
/// so that an FP64 run sees the very numbers of an FP32 or BF16 run.
class Machine {
 public:
  Machine(Place place, DType compute, DType operand)
      : device_(place == Place::gpu ? gpu().open(0) : make_cpu_memory(), std::uint64_t{1} << 28),
        ctx_{.device = &device_,
             .table = place == Place::gpu ? &gpu().kernels() : &cpu_reference_table(),
             .stream = device_.compute_stream(),
             .library_workspace_bytes = std::uint64_t{4} << 20},
        compute_(compute),
        operand_(operand) {}

  DType compute() const { return compute_; }
  DType operand_type() const { return operand_; }
  /// FP32, or FP64 in an FP64 run: sums, statistics, gradient sinks.
  DType wide() const { return sum_dtype(compute_); }
  /// `narrow` in a BF16 or FP32 run, FP64 in an FP64 run.
  DType or_double(DType narrow) const { return compute_ == DType::f64 ? DType::f64 : narrow; }

  /// `values` rounded to `dtype`; rows lie `gap` elements further apart than they are long. What
  /// lies between them is NaN.
  Tensor of(const Values& values, const Shape& shape, DType dtype, std::int64_t gap = 0) {
    const std::int64_t cols = shape.cols(), stride = cols + gap;
    const Tensor whole =
        device_.allocate({shape.rows(), stride}, dtype, Category::activations, "operand");
    std::vector<std::byte> bytes(whole.view().bytes(), std::byte{0xff});
    with_type(dtype, [&]<class T>() {
      T* const to = reinterpret_cast<T*>(bytes.data());
      for (std::int64_t i = 0; i < shape.numel(); ++i) {
        to[i / cols * stride + gap / 2 + i % cols] = narrow<T>(values[static_cast<std::size_t>(i)]);
      }
    });
    device_.copy_from_host(whole, bytes);
    return gap == 0 ? whole.reshape(shape) : whole.columns(gap / 2, cols);
  }
  /// Normal values of a named stream of test_seed(), rounded to `rounded_to`.
  Tensor normals(std::string_view name, const Shape& shape, DType dtype, DType rounded_to,
                 std::int64_t gap = 0) {
    const PhiloxKey key = philox_key(test_seed(), "test", name);
    Values values(static_cast<std::size_t>(shape.numel()));
    with_type(rounded_to, [&]<class T>() {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = widen(narrow<T>(normal_quantile(unit_interval(philox_word(key, 0, i)))));
      }
    });
    return of(values, shape, dtype, gap);
  }
  Tensor operand(std::string_view name, const Shape& shape, std::int64_t gap = 0) {
    return normals(name, shape, compute_, operand_, gap);
  }
  /// An operand that stays FP32 beside narrower ones.
  Tensor wide_operand(std::string_view name, const Shape& shape) {
    return normals(name, shape, wide(), DType::f32);
  }
  /// NaN everywhere: what a kernel does not write shows.
  Tensor empty(const Shape& shape, DType dtype, std::int64_t gap = 0) {
    return of(Values(static_cast<std::size_t>(shape.numel()), NAN), shape, dtype, gap);
  }
  Tensor output(const Shape& shape, std::int64_t gap = 0) { return empty(shape, compute_, gap); }
  Tensor zeros(const Shape& shape, DType dtype) {
    return of(Values(static_cast<std::size_t>(shape.numel()), 0.0), shape, dtype);
  }
  template <class Int>
  Tensor integers(const std::vector<Int>& values) {
    const Tensor tensor = device_.allocate({static_cast<std::int64_t>(values.size())},
                                           dtype_of<Int>, Category::activations, "integers");
    device_.copy_from_host(tensor, std::as_bytes(std::span(values)));
    return tensor;
  }

  /// Whole numbers that no kernel should leave there.
  Tensor empty_integers(const Shape& shape) {
    return integers(std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel()), -12345))
        .reshape(shape);
  }

  template <class K>
  void run(const K& kernel) {
    launch(ctx_, kernel);
  }

  /// Elements in logical order; waits for the device.
  Values read(const Tensor& tensor) {
    const View& view = tensor.view();
    const std::int64_t rows = view.rows(), cols = view.cols();
    // The storage from the view's first element on: gaps included.
    const std::int64_t span = rows == 0 ? 0 : (rows - 1) * view.row_stride + cols;
    std::vector<std::byte> bytes(static_cast<std::size_t>(span) * size_of(view.dtype));
    if (!bytes.empty()) {
      device_.synchronize();
      device_.backend().copy_to_host(bytes.data(), view.data, bytes.size());
    }
    Values values(static_cast<std::size_t>(view.numel()));
    const auto copy = [&]<class T>(const auto& as_double) {
      const T* const from = reinterpret_cast<const T*>(bytes.data());
      for (std::int64_t i = 0; i < view.numel(); ++i) {
        values[static_cast<std::size_t>(i)] =
            as_double(from[i / cols * view.row_stride + i % cols]);
      }
    };
    if (view.dtype == DType::i32) {
      copy.template operator()<std::int32_t>([](std::int32_t x) { return double{1} * x; });
    } else {
      with_type(view.dtype, [&]<class T>() {
        copy.template operator()<T>([](T x) { return static_cast<double>(widen(x)); });
      });
    }
    return values;
  }
  const KernelCtx& ctx() const { return ctx_; }
  KernelCtx& ctx() { return ctx_; }
  Device& device() { return device_; }

 private:
  Device device_;
  KernelCtx ctx_;
  DType compute_, operand_;
};

struct Output {
  Values values;
  double eps = 0;  // rounding_of() its dtype
  /// What rounding is relative to where the values are sums of larger ones that cancel.
  double of_magnitude = 0;
};

template <class... Tensors>
std::vector<Output> outputs(Machine& machine, const Tensors&... tensors) {
  return {Output{machine.read(tensors), test::rounding_of(tensors.dtype())}...};
}

/// Runs a problem and returns its outputs.
using Trial = std::function<std::vector<Output>(Machine&)>;

inline double max_magnitude(const Values& values) {
  double max = 0;
  for (const double x : values) max = std::max(max, std::abs(x));
  return max;
}

/// Infinite where one of two values is NaN or they are unequal infinities.
inline double max_difference(const Values& a, const Values& b) {
  double max = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    max = std::isnan(difference) ? INFINITY : std::max(max, difference);
  }
  return max;
}

struct Limits {
  /// The GPU's distance from FP64 on the same numbers, in units of the CPU reference's own.
  double times_reference = 2;
  /// What it may always be off, in units of eps times the largest value.
  double floor = 2;
  /// Every bit is the reference's.
  bool same_bits = false;
};

/// The GPU against the CPU reference in fp64 on the same numbers, and against the reference's own
/// error in `dtype`; twice, for the same bits.
inline void compare(const Trial& trial, DType dtype, const Limits& limits = {}) {
  CAPTURE(to_string(dtype));
  const auto on = [&](Place place, DType compute) {
    Machine machine(place, compute, dtype);
    return trial(machine);
  };
  const auto exact = on(Place::reference, DType::f64);
  const auto plain = on(Place::reference, dtype);
  const auto first = on(Place::gpu, dtype);
  const auto again = on(Place::gpu, dtype);
  REQUIRE(first.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    const double unit =
        plain[i].eps * std::max(max_magnitude(exact[i].values), exact[i].of_magnitude);
    const double reference = max_difference(plain[i].values, exact[i].values);
    CHECK(max_difference(first[i].values, exact[i].values) <=
          std::max(limits.times_reference * reference, limits.floor * unit));
    CHECK(max_difference(first[i].values, again[i].values) == 0);
    if (limits.same_bits) CHECK(max_difference(first[i].values, plain[i].values) == 0);
  }
}

}  // namespace llmtrain::kernels::gpu_trial
