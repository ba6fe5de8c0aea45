// Rows on their way to experts, and what their routers ask of other ranks.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

// GShard (arXiv 2006.16668): a multiple of an expert's even share of a sequence.
double TextbookRank::capacity() const {
  const models::ExpertsSpec& experts = spec().experts;
  if (experts.capacity_factor == 0) return length_;
  const double even =
      length_ * static_cast<double>(experts.rule.top_k) / static_cast<double>(experts.num_experts);
  constexpr double kRounding = 1e-12;
  return std::min(length_, std::ceil(experts.capacity_factor * even * (1 - kRounding)));
}

// With parallelism.ep_room: no more than a row's choices, than experts have room for, and than that
// multiple of the even share.
double TextbookRank::rows_for_each() const {
  const double n = mesh().ep, here = static_cast<double>(spec().experts.num_experts) / n;
  const auto top_k = static_cast<double>(spec().experts.rule.top_k);
  const double taken = here * rows_ / (length_ / size(Axis::sp)) * capacity();
  return std::min({rows_ * std::min(top_k, here),
                   spec().experts.capacity_factor == 0 ? here * rows_ : taken,
                   std::ceil(mesh().ep_room * rows_ * top_k / n)});
}

// Once in a backward a sequence's choices of each expert, of which its balance loss is made, are
// summed (though where there is no such loss nobody needs them). With a capacity the ranks know of
// each other's choices, by whose scores it is given away, and of their rows' places.
void TextbookRank::choices_of_sequences(double passes, double ways_forth) {
  const double n = size(Axis::sp), count = static_cast<double>(spec().experts.num_experts);
  all_reduce("sp", n, passes * sequences_ * count * wide_);
  if (spec().experts.capacity_factor == 0) return;
  const double of_row = static_cast<double>(spec().experts.rule.top_k) * (4 + wide_) + 4;
  all_gather("sp", n, ways_forth * n * rows_ * of_row);
}

// arXiv 2006.16668: the rows of choices go to their experts and come back, and so do gradients; a
// choice's weight goes there, and its gradient back. (Computing a block again brings rows back
// again, too, which its backward does not need.) Before that each rank tells where the rows of each
// expert begin and end, and how many rows it has; or as many go to each, with their experts.
void TextbookRank::experts() {
  const double n = mesh().ep, count = static_cast<double>(spec().experts.num_experts);
  const auto hidden = static_cast<double>(spec().hidden_size);
  const double both_ways = 2 * hidden * bytes_ + wide_;
  const auto top_k = static_cast<double>(spec().experts.rule.top_k);
  std::size_t layer = 0;
  for (int b = 0; b < blocks_; ++b) {
    if (!spec().has_experts(b)) continue;
    const std::size_t number = layer++;
    if (!has_block(b)) continue;
    const double passes = micro_batches_, again = forwards(b) * micro_batches_;
    choices_of_sequences(passes, again);
    if (n == 1) continue;
    if (mesh().ep_room > 0) {
      constexpr double kIdBytes = 4;
      add(Collective::all_to_all, "experts",
          (n - 1) * rows_for_each() * ((again + passes) * both_ways + again * kIdBytes));
      continue;
    }
    const double kept = std::min(rows_ * top_k, count * capacity() * rows_ / length_);
    const double leave =
        run_.rows_elsewhere.empty() ? passes * others(n) * kept : run_.rows_elsewhere[number];
    add(Collective::all_to_all, "experts", (forwards(b) + 1) * leave * both_ways);
    add(Collective::all_gather, "experts", again * (n - 1) * (count + 2) * sizeof(std::int64_t));
  }
}

}  // namespace llmtrain::test
