#pragma once
/// Small gradients on their way to their sums over ranks, as one message.

#include <optional>
#include <span>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// A message takes as long as its first byte does, however short it is: the vectors of a block,
/// each by itself, would wait for one another longer than they travel. They are copied one behind
/// the other and back, which changes no bit: members add element by element in group order.
class GradientBucket {
 public:
  /// What takes no longer than a few first bytes on any link. Larger ones travel from where they
  /// are.
  static bool takes(const Tensor& gradient) { return gradient.view().bytes() <= kMostBytes; }

  /// Collective over `group`. Gradients of one dtype; with a `type` other than theirs (as
  /// TravellingSum) what travels is rounded to it. What travels has memory of its own until the
  /// sums have arrived.
  GradientBucket(const kernels::KernelCtx& ctx, Communicator& group,
                 std::span<const ParameterGroup* const> groups, std::optional<DType> type);

  /// Awaits the sums, which take the places of their terms.
  void arrive(const kernels::KernelCtx& ctx);

 private:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 18;

  struct Place {
    Tensor gradient, travelling;
  };
  std::vector<Place> places_;
  Handle handle_;
};

}  // namespace llmtrain::parallel
