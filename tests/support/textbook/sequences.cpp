// Ranks that share the rows of sequences.
#include <algorithm>

#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

// Neighbours exchange rows for heads (arXiv 2309.14509): q, k, v and the output of attention, and
// their gradients; of fewer key/value heads than ranks each rank gets a whole one. Groups of them
// gather keys and values, in the backward again, and sum their gradients; or pass them around
// (arXiv 2310.01889), in the backward with the gradients' sums behind them, which are FP32 of bf16,
// too. Where attention alone is computed again, its output and what it reads travel once more.
void TextbookRank::sequences() {
  const bool all_share_heads = mesh().sp_algo == SequenceSharing::ulysses;
  const double u = all_share_heads ? size(Axis::sp) : mesh().sp_ulysses, n = size(Axis::sp) / u;
  const auto dim = static_cast<double>(spec().head_dim);
  const double q = static_cast<double>(spec().num_attention_heads) / tp_ * dim;
  double k = std::max(1.0, static_cast<double>(spec().num_key_value_heads) / tp_) * dim;
  double passes = 0, ways_forth = 0, again = 0;
  for (int b = 0; b < blocks_; ++b) {
    if (!has_block(b)) continue;
    passes += micro_batches_;
    ways_forth += micro_batches_ * forwards(b);
    if (run_.options.recompute.block(b).ops.contains("attention")) again += micro_batches_;
  }
  if (u > 1) {
    k = std::max(k, u * dim);
    add(Collective::all_to_all, n > 1 ? "sp heads" : "sp",
        others(u) * rows_ * ((ways_forth + passes) * 2 * (q + k) + again * q) * bytes_);
  }
  if (n == 1) return;
  ways_forth += again;
  const std::string group = u > 1 ? "sp rows" : "sp";
  const double keys_and_values = sequences_ * length_ * 2 * k / u;
  if (mesh().sp_algo == SequenceSharing::ring) {
    const double around = (n - 1) * keys_and_values / n;
    add(Collective::send, group, ((ways_forth + passes) * bytes_ + passes * wide_) * around);
  } else {
    all_gather(group, n, (ways_forth + passes) * keys_and_values * bytes_);
    add(Collective::reduce_scatter, group, passes * others(n) * keys_and_values * bytes_);
  }
}

}  // namespace llmtrain::test
