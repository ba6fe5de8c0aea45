#pragma once
/// Small gradients on their way to their sums over ranks, as one message.

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// A message takes as long as its first byte does, however short it is: the vectors of a block,
/// each by itself, would wait for one another longer than they travel. They are copied one behind
/// the other and back, which changes no bit: members add element by element in group order. With a
/// `type` other than the gradients' (as TravellingSum) what travels is rounded to it. What travels
/// has memory of its own until the sums have arrived.
class GradientBucket {
 public:
  /// Collective over `group`. Gradients of one dtype, the first of which is called `first`.
  static GradientBucket over(const kernels::KernelCtx& ctx, Communicator& group,
                             std::span<const Tensor> gradients, std::optional<DType> type,
                             std::string_view first);
  /// Of the gradients of sliced parameters, whole: each owner gets the sums of its slices.
  static GradientBucket to_owners(const kernels::KernelCtx& ctx, Communicator& owners,
                                  std::span<const Parameter* const> parameters,
                                  std::optional<DType> type);

  /// Awaits the sums, which take the places of their terms.
  void arrive(const kernels::KernelCtx& ctx);
  /// Awaits the sums of own slices and adds them to Parameter::own_grad(). Once.
  void arrive_onto_own(const kernels::KernelCtx& ctx);

 private:
  struct Place {
    Tensor gradient, travelling;
    const Parameter* parameter = nullptr;  // to_owners()
  };
  std::vector<Place> places_;  // what arrives here
  Tensor message_;
  Handle handle_;
};

}  // namespace llmtrain::parallel
