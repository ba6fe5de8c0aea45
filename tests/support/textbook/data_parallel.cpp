// Gradients that data ranks sum, and what ZeRO divides among them.
#include <algorithm>

#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

using parallel::ActionKind;

// arXiv 1910.02054: gradients are summed, or each to its owner, and parameters gathered. Of groups
// with all slices each (arXiv 2304.11277) owners of the same slice sum up what their groups have.
void TextbookRank::divided(const TextbookTensor& tensor, const Times& times) {
  const int zero = run_.options.zero;
  const double n = owners(tensor.of_experts), sets = mesh().dp_replicate;
  const bool own = tensor.of_experts && mesh().ep > 1;
  if (n == 1) {
    return all_reduce(own ? "same experts" : "dp*sp", holders(tensor.of_experts),
                      tensor.elements() * travel_);
  }
  const std::string group = own ? "expert owners" : sets > 1 ? "owners" : "dp*sp";
  add(Collective::reduce_scatter, group,
      (zero > 1 ? times.grads_made : 1) * others(n) * tensor.elements() * travel_);
  all_gather(group, n, (zero > 2 ? times.gathered : 1) * tensor.elements() * bytes_);
  all_reduce("replicas", sets, tensor.elements() * travel_ / n);
}

// From ZeRO 2 on a gradient is whole while a backward adds to it, and from ZeRO 3 on a parameter
// while one of the two ways needs it; where values are computed again for the gradients of weights,
// until these are there. Blocks that are computed again as one come and go as one, and what the way
// back begins with, the last block, stays.
TextbookRank::Times TextbookRank::times_of_block(int block) const {
  constexpr auto F = ActionKind::forward, I = ActionKind::input_grad, W = ActionKind::weight_grad;
  const engine::RecomputePolicy& policy = run_.options.recompute;
  const int stage = stage_of_block(block), end = first_block(stage + 1);
  int behind = first_block(stage);
  while (behind <= block) {
    const int begin = behind++;
    const int most = is_again(begin) ? std::min(end, begin + policy.segment) : behind;
    while (behind < most && is_again(behind)) ++behind;
  }
  const ActionKind last = policy.block(block).ops.empty() ? I : W;
  const double made = times_made({{stage, I, W}});
  return {made, behind == blocks_ ? times_made({{stage, F, last}})
                                  : times_made({{stage, F, F}, {stage, I, last}})};
}

// A look-up's backward needs no table, nor does that of the head, whose gradient its forward makes.
// The final norm is with what the way back begins with.
TextbookRank::Times TextbookRank::times_of(const TextbookTensor& tensor) const {
  constexpr auto F = ActionKind::forward, I = ActionKind::input_grad, W = ActionKind::weight_grad;
  const int end = stages_ - 1;
  const Stretch look_up{0, F, F}, look_up_grad{0, I, W}, head{end, F, F}, head_grad{end, F, W};
  const ModelUnits units{blocks_};
  if (tensor.is_tied) {
    // Whole from the look-up to the head, and on the way back; or on two stages of this rank.
    if (stages_ == 1 || !first_) return {times_made({head_grad}), times_made({head})};
    if (!last_) return {times_made({look_up_grad}), times_made({look_up})};
    return {times_made({look_up_grad, head_grad}), times_made({look_up, head})};
  }
  if (tensor.unit == ModelUnits::embedding()) {
    return {times_made({look_up_grad}), times_made({look_up})};
  }
  if (tensor.unit == units.head()) return {times_made({head_grad}), times_made({head})};
  if (tensor.unit != units.norm()) return times_of_block(tensor.unit - 1);
  const ActionKind last = run_.options.recompute.outside.empty() ? I : W;
  return {times_made({{end, I, W}}), times_made({{end, F, last}})};
}

void TextbookRank::gradients_and_parameters() {
  for (const TextbookTensor& tensor : tensors_) {
    if (has_tensor(tensor)) divided(tensor, times_of(tensor));
  }
}

}  // namespace llmtrain::test
