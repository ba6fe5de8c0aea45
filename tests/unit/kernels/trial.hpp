#pragma once
/// Trials: one kernel problem, run by any table in any dtype and compared.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <hwy/highway.h>

#include "kernels/cpu/element.hpp"
#include "kernels/operands.hpp"
#include "lib/base/philox.hpp"
#include "tests/support/rounding.hpp"

namespace llmtrain::kernels::trial {

using Values = std::vector<double>;

/// Elements in logical order.
inline Values values_of(const View& view) {
  Values values(static_cast<std::size_t>(view.numel()));
  if (view.dtype == DType::i32) {
    std::copy_n(view.as<std::int32_t>(), values.size(), values.begin());
    return values;
  }
  with_type(view.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      values[static_cast<std::size_t>(i)] = widen(view.row<T>(i / view.cols())[i % view.cols()]);
    }
  });
  return values;
}

struct Output {
  Values values;
  double eps = 0;  // rounding_of() its dtype
};

template <class... Tensors>
std::vector<Output> outputs(const Tensors&... tensors) {
  return {Output{values_of(tensors), test::rounding_of(tensors.dtype())}...};
}

inline void set_values(const View& view, const Values& values) {
  if (view.dtype == DType::i32) {
    std::transform(values.begin(), values.end(), view.as<std::int32_t>(),
                   [](double value) { return static_cast<std::int32_t>(value); });
    return;
  }
  with_type(view.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      view.row<T>(i / view.cols())[i % view.cols()] =
          narrow<T>(values[static_cast<std::size_t>(i)]);
    }
  });
}

/// A CPU with one table. It computes in `compute`, on operands whose values `operand` can hold, so
/// that an FP64 run sees the very numbers of a narrower run.
class Machine {
 public:
  Machine(const KernelTable& table, DType compute, DType operand, int threads)
      : device_(make_cpu_memory(), std::uint64_t{1} << 33),
        ctx_{&device_, &table, {}, threads, Determinism::run, nullptr},
        compute_(compute),
        operand_(operand) {}

  DType compute() const { return compute_; }
  DType sink() const { return sum_dtype(compute_); }
  /// `narrow` in an FP32, BF16 or FP16 run, FP64 in an FP64 run.
  DType or_double(DType narrow) const { return compute_ == DType::f64 ? DType::f64 : narrow; }
  /// That of the operands in an FP64 run, too.
  DType operand_dtype() const { return operand_; }

  /// Rows lie `gap` elements further apart than they are long.
  Tensor empty(const Shape& shape, DType dtype, std::int64_t gap = 0) {
    const Tensor whole = device_.allocate({shape.rows(), shape.cols() + gap}, dtype,
                                          Category::activations, "operand");
    set_values(whole, Values(static_cast<std::size_t>(whole.numel()), kUntouched));
    return gap == 0 ? whole.reshape(shape) : whole.columns(gap / 2, shape.cols());
  }
  Tensor of(const Values& values, const Shape& shape, DType dtype, std::int64_t gap = 0) {
    Tensor tensor = empty(shape, dtype, gap);
    set_values(tensor, values);
    return tensor;
  }
  /// Normal values of a named stream.
  Tensor normals(std::string_view name, const Shape& shape, DType dtype, DType rounded_to,
                 std::int64_t gap = 0) {
    const PhiloxKey key = philox_key(1, "test", name);
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
  Tensor wide(std::string_view name, const Shape& shape) {
    return normals(name, shape, sink(), DType::f32);
  }
  template <class Int>
  Tensor integers(const std::vector<Int>& values) {
    const Tensor tensor = device_.allocate({static_cast<std::int64_t>(values.size())},
                                           dtype_of<Int>, Category::activations, "integers");
    device_.copy_from_host(tensor, std::as_bytes(std::span(values)));
    return tensor;
  }
  Tensor output(const Shape& shape, std::int64_t gap = 0) { return empty(shape, compute_, gap); }

  template <class K>
  void run(const K& kernel) {
    launch(ctx_, kernel);
  }
  const KernelCtx& ctx() const { return ctx_; }

  /// What memory holds before a kernel writes it.
  static constexpr double kUntouched = -12345;

 private:
  Device device_;
  KernelCtx ctx_;
  DType compute_;
  DType operand_;
};

/// Runs a problem and returns its outputs.
using Trial = std::function<std::vector<Output>(Machine&)>;

inline std::vector<Output> run(const Trial& trial, const KernelTable& table, DType compute,
                               DType operand, int threads) {
  Machine machine(table, compute, operand, threads);
  return trial(machine);
}

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

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

struct Limits {
  /// The reference's distance from FP64, in units of eps times the largest value.
  double reference = 4;
  /// The fast path's distance from FP64, in units of the reference's.
  double fast = 2;
  /// What the fast path may always be off, in units of eps times the largest value.
  double floor = 2;
  bool same_bits_as_reference = false;
  bool independent_of_threads = true;
};

inline void compare_output(const Output& fast, const Output& plain, const Output& exact,
                           const Limits& limits) {
  const double unit = plain.eps * max_magnitude(exact.values);
  const double error = max_difference(plain.values, exact.values);
  CHECK(error <= limits.reference * unit);
  CHECK(max_difference(fast.values, exact.values) <=
        std::max(limits.fast * error, limits.floor * unit));
  if (limits.same_bits_as_reference) CHECK(same_bits(fast.values, plain.values));
}

/// Makes the vectorised kernels believe in a lesser processor.
class InstructionSet {
 public:
  explicit InstructionSet(std::int64_t targets) { hwy::GetChosenTarget().Update(targets); }
  ~InstructionSet() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;
};

/// Reference against FP64; fast against both with 1, 2, 3 and 7 threads, against each other, and
/// with every instruction set that this processor has.
inline void compare(const Trial& trial, DType dtype, const Limits& limits) {
  CAPTURE(to_string(dtype));
  const auto exact = run(trial, cpu_reference_table(), DType::f64, dtype, 1);
  const auto plain = run(trial, cpu_reference_table(), dtype, dtype, 1);
  const auto compare_all = [&](const std::vector<Output>& fast) {
    REQUIRE(fast.size() == exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      compare_output(fast[i], plain[i], exact[i], limits);
    }
  };
  const auto alone = run(trial, cpu_table(), dtype, dtype, 1);
  compare_all(alone);
  for (const int threads : {2, 3, 7}) {
    CAPTURE(threads);
    const auto fast = run(trial, cpu_table(), dtype, dtype, threads);
    compare_all(fast);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if (limits.independent_of_threads) CHECK(same_bits(fast[i].values, alone[i].values));
    }
  }
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    CAPTURE(hwy::TargetName(target));
    const InstructionSet only(target);
    compare_all(run(trial, cpu_table(), dtype, dtype, 2));
  }
}

}  // namespace llmtrain::kernels::trial
