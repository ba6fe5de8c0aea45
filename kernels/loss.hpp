#pragma once
/// Embedding look-up and cross-entropy.

#include <algorithm>

#include "kernels/kernel.hpp"
#include "kernels/step_scalars.hpp"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels {

/// The ids that a kernel has of a vocabulary whose parts several ranks hold.
struct VocabPart {
  std::int64_t first = 0;  // id of the first row of the table, or of the first class of the logits
  std::int64_t whole = 0;  // ids of all parts together; 0: this part is the vocabulary
  /// Ids of all parts when this one has `here`.
  std::int64_t end(std::int64_t here) const { return whole == 0 ? here : whole; }
};

/// y[i] = table[id[i]] (+ y[i] with `accumulate`), 0 (+ y[i]) where another part has the id. id
/// int32 [rows], 0 <= id < part.end(table rows) (the CPU checks and throws DataError; on a GPU such
/// a row becomes NaN); table [vocab, hidden], y [rows, hidden] in one dtype.
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding_forward";
  View id, table;
  View y;
  bool accumulate = false;
  VocabPart part{};
  void check() const;
  Cost cost() const;
  DType dtype() const { return table.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {id.numel(), table.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// dtable[id[i]] += dy[i], rows with equal id in ascending order; ids of other parts are left out.
/// dtable FP32 (FP64 for fp64). Ids as in the forward; a GPU leaves out those that no part has.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  View id, dy;
  View dtable;
  VocabPart part{};
  void check() const;
  Cost cost() const;
  DType dtype() const { return dy.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {id.numel(), dy.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// What the loss of a row needs to know of the classes of one part: the largest of its z, the sum
/// of exp(z - largest), and z[target], 0 where another part has the target or there is none (-1).
/// Operands as in CrossEntropy; statistics [rows, 3] FP32 (FP64 for fp64).
struct LogitStatistics {
  static constexpr std::string_view name = "logit_statistics";
  View logits, target;
  View statistics;
  std::int64_t num_classes = 0;
  double softcap = 0;
  VocabPart part{};
  void check() const;
  Cost cost() const;
  DType dtype() const { return logits.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {logits.rows(), logits.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Per row: loss = lse(z) - z[target], with z = logits (fp64 | fp32 | bf16 | fp16; all that follows
/// is in FP32 for the narrow ones), or softcap * tanh(logits / softcap); 0 where target is -1
/// (untrained). Targets are -1 or a class (the CPU checks and throws DataError; on a GPU the loss
/// and the gradient of such a row are NaN, so that its step is refused). With dlogits (as the
/// logits; beside fp32 also bf16 and fp16): dlogits = grad_scale * (softmax(z) - onehot(target)),
/// times the slope of the cap, 0 in untrained rows. Both may be strided; dlogits may alias logits
/// when their rows begin at the same addresses. Only the first `num_classes` columns are classes;
/// the rest is padding: no probability, no gradient. Where the logits are those of one part of the
/// vocabulary, `statistics` [parts * rows, 3] are those of all parts, one after the other, joined in
/// this order. With z_loss_coef, z_loss [rows] = z_loss_coef * lse(z)^2 in trained rows (PaLM's,
/// arXiv 2204.02311, section 5), and dlogits is the gradient of loss + z_loss: softmax(z) counts
/// 1 + 2 z_loss_coef lse(z) times.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  View logits, target;  // [rows, vocab], int32 [rows]
  View loss;            // [rows] FP32 (FP64 for fp64)
  View dlogits;
  std::int64_t num_classes = 0;
  VocabPart part{};
  View statistics{};
  double grad_scale = 1;
  double softcap = 0;  // 0 = none
  double z_loss_coef = 0;
  View z_loss{};  // as `loss`; where z_loss_coef is not 0
  /// Where given (StepScalars), its grad_scale counts, as it is when the kernel runs.
  View scalars;
  /// Where given (UpdateDecision), its loss_scale counts, too, as it is when the kernel runs.
  View decision;
  /// For kernels of the CPU.
  double grad_scale_now() const {
    const double scale = scalars.defined() ? scalars.as<StepScalars>()->grad_scale : grad_scale;
    return decision.defined() ? scale * decision.as<UpdateDecision>()->loss_scale : scale;
  }
  void check() const;
  Cost cost() const;
  DType dtype() const { return logits.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {logits.rows(), logits.cols(), dlogits.defined(), statistics.defined()};
  }
  std::int64_t parts() const {
    return statistics.defined() ? statistics.rows() / std::max<std::int64_t>(1, logits.rows()) : 1;
  }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// out[0] += sum of x. Blocks of 1,024 elements are summed in FP64 and joined in ascending order
/// from zero. x FP32 | FP64, out FP64 [1].
struct Sum {
  static constexpr std::string_view name = "sum";
  static constexpr std::int64_t kBlock = 1024;
  View x;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
