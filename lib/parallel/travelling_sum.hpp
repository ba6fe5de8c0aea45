#pragma once
/// A gradient on its way to its sum over ranks, in the type in which it travels
/// (precision.grad_reduce).

#include <optional>
#include <string_view>

#include "kernels/kernel.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// Adds a sum that has travelled, in `total`'s type or another, to it.
void add_sum(const kernels::KernelCtx& ctx, const Tensor& sum, const Tensor& total);

class TravellingSum {
 public:
  /// Of `grad` over all members of the group. With a type other than the gradient's what travels is
  /// a copy, in memory of its own until the sum has arrived.
  static TravellingSum over(const kernels::KernelCtx& ctx, Communicator& group, const Tensor& grad,
                            std::optional<DType> type, std::string_view name);
  /// Of `grad`, in the shape of the sliced parameter's box: each owner gets the sum of its slice.
  static TravellingSum to_owners(const kernels::KernelCtx& ctx, Communicator& owners,
                                 const Parameter& parameter, const Tensor& grad,
                                 std::optional<DType> type);

  /// Awaits the sum, which takes the place of its terms in `grad`.
  void arrive(const kernels::KernelCtx& ctx);
  /// Awaits the sum and adds it to `total`, a tensor of the gradient's type.
  void arrive_onto(const kernels::KernelCtx& ctx, const Tensor& total);

 private:
  TravellingSum(const kernels::KernelCtx& ctx, const Tensor& grad, std::optional<DType> type);

  Tensor sent_;    // the gradient, or its copy in another type
  Tensor target_;  // of the gradient, what the sum is of
  Tensor sum_;     // of `sent_`, where it arrives
  Handle handle_;
};

}  // namespace llmtrain::parallel
