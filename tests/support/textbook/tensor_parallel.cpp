// Layers that ranks share, and stages of a pipeline.
#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

// arXiv 1909.08053: two sums in a block's forward and two in its backward, one behind the embedding
// and one behind the head's backward. Computing a block again makes those of its forward again,
// though its backward does not need the last one.
// arXiv 2205.05198: where ranks share rows a sum is a scatter and the other way's is a gather; what
// products need for their weights is gathered once more.
void TextbookRank::tensor_parallel() {
  if (tp_ == 1) return;
  double sums = first_ + last_, for_weights = 0;
  for (int b = 0; b < blocks_; ++b) {
    if (!has_block(b)) continue;
    sums += 2 * forwards(b) + 2;
    for_weights += 2;
  }
  sums *= micro_batches_;
  if (shares_rows()) {
    add(Collective::reduce_scatter, "tp", sums * others(tp_) * activations_);
    all_gather("tp", tp_, (sums + micro_batches_ * for_weights) * activations_);
  } else {
    all_reduce("tp", tp_, sums * activations_);
  }
  // Of each row the largest logit, the sum of exponentials, and the target's logit.
  if (last_) all_gather("tp", tp_, micro_batches_ * tp_ * rows_ * 3 * wide_);
}

// Once a step, of what ZeRO divides the owner's slices.
void TextbookRank::partial_gradients() {
  const bool two_tables = rank_of(0) != rank_of(stages_ - 1);
  for (const TextbookTensor& tensor : tensors_) {
    if (!has_tensor(tensor)) continue;
    const double bytes = tensor.elements() * wide_ / owners(tensor.of_experts);
    if (tensor.is_partial) all_reduce("tp", tp_, bytes);
    if (tensor.replicas > 1) all_reduce("tp replicas", tensor.replicas, bytes);
    if (tensor.is_tied && two_tables) all_reduce("pp holders", 2, bytes);
  }
}

// arXiv 2104.04473: where the next stage is another rank's, an activation goes there, and its
// gradient comes back. (There each rank of tp sends its part of an activation that all of them
// have; here each sends all of it.)
void TextbookRank::pipeline() {
  if (size(Axis::pp) == 1) return;
  const double message = activations_ / (shares_rows() ? tp_ : 1);
  for (int s = 0; s + 1 < stages_; ++s) {
    if (rank_of(s) == rank_of(s + 1)) continue;
    add(Collective::send, "pp", micro_batches_ * message * (has(s) + has(s + 1)));
  }
}

}  // namespace llmtrain::test
