#pragma once
/// What every check() says about its operands. Failures are InternalErrors that name kernel,
/// operand, what was found and what was expected.

#include <initializer_list>
#include <string_view>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// FP64 for fp64, FP32 for everything else: the type of sums, statistics and gradient sinks.
constexpr DType sum_dtype(DType compute) { return compute == DType::f64 ? DType::f64 : DType::f32; }

/// Types that activations and parameters are computed in.
inline constexpr std::initializer_list<DType> kComputeDTypes = {DType::f64, DType::f32, DType::bf16,
                                                                DType::f16};

class Operands {
 public:
  explicit Operands(std::string_view kernel) : kernel_(kernel) {}

  /// Present, rows x cols, of one of `dtypes`; rows may lie apart.
  void strided(std::string_view name, const View& view, std::int64_t rows, std::int64_t cols,
               std::initializer_list<DType> dtypes) const;
  /// Present, `numel` elements in one piece, of one of `dtypes`.
  void dense(std::string_view name, const View& view, std::int64_t numel,
             std::initializer_list<DType> dtypes) const;
  void absent(std::string_view name, const View& view) const;
  /// An output that must not be one of the inputs.
  void distinct(std::string_view output_name, const View& output, std::string_view input_name,
                const View& input) const;
  /// A condition on sizes or scalars; `expected` completes "<kernel> expects ...".
  void expects(bool condition, std::string_view expected) const;

 private:
  void present(std::string_view name, const View& view, std::initializer_list<DType> dtypes) const;

  std::string_view kernel_;
};

/// Cost of a kernel that reads and writes each operand once; absent operands count nothing.
Cost memory_cost(std::initializer_list<View> read, std::initializer_list<View> written);

}  // namespace llmtrain::kernels
