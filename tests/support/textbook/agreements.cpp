// What no paper counts: a step's loss, its norm, and what routers report.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "tests/support/textbook/rank.hpp"

namespace llmtrain::test {

namespace {

constexpr double kSumBytes = 8;           // of a loss and of a part of a norm
constexpr std::int64_t kElements = 1024;  // of a block, over which a norm is summed first

// Blocks from `begin` on, up to `end`: aligned runs of 2^k of them, as few as can be.
std::int64_t runs_between(std::int64_t begin, std::int64_t end) {
  std::int64_t runs = 0;
  for (; begin < end; ++runs) {
    auto run = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin)));
    while (begin % run != 0) run /= 2;
    begin += run;
  }
  return runs;
}

// Elements that an update needs at once, of which no slice begins in the middle; 0: all.
std::int64_t whole_pieces(std::string_view optimizer, const TextbookTensor& tensor) {
  const bool is_matrix = tensor.here.size() > 1;
  if (needs_whole_matrices(optimizer)) return tensor.kind == TensorKind::matrix ? 0 : 1;
  if (optimizer == "adam_mini") {
    if (tensor.kind == TensorKind::bias) return 1;
    return is_matrix ? std::min(tensor.head_rows, tensor.rows()) * tensor.columns() : 0;
  }
  if (optimizer == "adafactor" || optimizer == "came" || optimizer == "sm3") {
    if (!is_matrix) return optimizer == "sm3" ? 1 : 0;
    return tensor.here.size() > 2 ? tensor.rows() * tensor.columns() : 0;
  }
  return 1;
}

// Of a tensor whose owners' slices are cut at whole blocks and pieces, nearest to even.
std::int64_t runs_of_slices(std::int64_t elements, std::int64_t piece, std::int64_t owners) {
  const std::int64_t blocks = (elements + kElements - 1) / kElements;
  if (piece == 0 || owners == 1) return runs_between(0, blocks);
  const std::int64_t step = std::lcm(kElements, piece);
  std::int64_t runs = 0, begin = 0;
  for (std::int64_t r = 1; r <= owners; ++r) {
    const std::int64_t even = elements * r / owners, below = even / step * step;
    const std::int64_t above = std::min(below + step, elements);
    const std::int64_t nearest = even - below <= above - even ? below : above;
    const std::int64_t end = r == owners ? elements : nearest;
    if (end > begin) runs += runs_between(begin / kElements, (end + kElements - 1) / kElements);
    begin = end;
  }
  return runs;
}

}  // namespace

// Parts of all parameters' norms: one each, or as many as the owners of slices make.
double TextbookRank::norm_sums() const {
  const std::string_view name = run_.options.optimizer->name().name;
  if (owners() == 1) return static_cast<double>(tensors_.size());
  std::int64_t runs = 0;
  for (const TextbookTensor& tensor : tensors_) {
    const double n = has_tensor(tensor) ? owners(tensor.of_experts) : 1;
    runs += runs_of_slices(static_cast<std::int64_t>(tensor.elements()), whole_pieces(name, tensor),
                           static_cast<std::int64_t>(n));
  }
  return static_cast<double>(runs);
}

void TextbookRank::agreements() {
  const double pp = size(Axis::pp);
  // Of tokens, and of the logits' sizes.
  const double losses = run_.options.z_loss_coef > 0 ? 2 : 1;
  const models::ExpertsSpec& experts = spec().experts;
  const double counts = experts.capacity_factor > 0 ? 2 : 1;  // chosen, and kept
  double of_layer = static_cast<double>(experts.num_experts) * counts * wide_ + 2 * kSumBytes;
  if (mesh().ep > 1 && mesh().ep_room > 0) of_layer += kSumBytes;  // room that was needed
  const double bytes = losses * kSumBytes + expert_layers() * of_layer;
  all_reduce("dp*sp", data_, bytes);
  all_reduce("pp", pp, bytes);

  all_reduce("tp*pp", tp_ * pp, static_cast<double>(tensors_.size()) * kSumBytes);
  if (owners() > 1) {
    all_reduce(mesh().dp_replicate > 1 ? "owners" : "dp*sp", owners(), norm_sums() * kSumBytes);
  } else {
    all_reduce("experts", mesh().ep, norm_sums() * kSumBytes);
  }
}

}  // namespace llmtrain::test
