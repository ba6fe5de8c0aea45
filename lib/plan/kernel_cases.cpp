#include "lib/plan/kernel_cases.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/activations.hpp"
#include "kernels/attention.hpp"
#include "kernels/head_norm_rope.hpp"
#include "kernels/loss.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::plan {

namespace {

using namespace kernels;

// Width of the rows: of a small model; time per byte hardly depends on it.
constexpr std::int64_t kCols = 768;
constexpr std::int64_t kVocab = 8192;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kMaxPosition = 1024;

template <bool residual>
LaunchTime norm_forward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(NormForward{.kind = NormKind::layer_norm,
                              .x = b.input(rows, kCols, t),
                              .residual = residual ? b.input(rows, kCols, t) : View{},
                              .sum = residual ? b.result(rows, kCols, t) : View{},
                              .weight = b.input(1, kCols, t),
                              .bias = b.input(1, kCols, t),
                              .y = b.result(rows, kCols, t),
                              .mean = b.result(1, rows, DType::f32),
                              .rstd = b.result(1, rows, DType::f32)});
}

template <bool residual>
LaunchTime norm_backward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(NormBackward{.kind = NormKind::layer_norm,
                               .dy = b.input(rows, kCols, t),
                               .dsum = residual ? b.input(rows, kCols, t) : View{},
                               .s = b.input(rows, kCols, t),
                               .weight = b.input(1, kCols, t),
                               .mean = b.input(1, rows, DType::f32),
                               .rstd = b.input(1, rows, DType::f32),
                               .dx = b.result(rows, kCols, t),
                               .dweight = b.result(1, kCols, DType::f32),
                               .dbias = b.result(1, kCols, DType::f32)});
}

LaunchTime add(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Add{
      .a = b.input(rows, kCols, t), .b = b.input(rows, kCols, t), .y = b.result(rows, kCols, t)});
}

LaunchTime scale_cast(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ScaleCast{.x = b.input(rows, kCols, t), .y = b.result(rows, kCols, t)});
}

LaunchTime normalize(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Normalize{.x = b.input(rows, kCols, t),
                            .squared_norm = b.input(1, 1, DType::f64),
                            .y = b.result(rows, kCols, t)});
}

LaunchTime fill(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Fill{.y = b.result(rows, kCols, t)});
}

// Sums of losses and squares are fp64.
LaunchTime fill_sums(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(Fill{.y = b.result(rows, kCols, DType::f64)});
}

template <bool gated>
LaunchTime activation_forward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(
      ActivationForward{.activation = *parse_activation(gated ? "silu" : "gelu_pytorch_tanh"),
                        .x = b.input(rows, kCols, t),
                        .up = gated ? b.input(rows, kCols, t) : View{},
                        .y = b.result(rows, kCols, t)});
}

template <bool gated>
LaunchTime activation_backward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(
      ActivationBackward{.activation = *parse_activation(gated ? "silu" : "gelu_pytorch_tanh"),
                         .x = b.input(rows, kCols, t),
                         .up = gated ? b.input(rows, kCols, t) : View{},
                         .dy = b.input(rows, kCols, t),
                         .dx = b.result(rows, kCols, t),
                         .dup = gated ? b.result(rows, kCols, t) : View{}});
}

LaunchTime dropout(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Dropout{.x = b.input(rows, kCols, t),
                          .row_id = b.numbers(rows, rows, DType::i64),
                          .y = b.result(rows, kCols, t),
                          .p = 0.1});
}

LaunchTime rope(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Rope{.x = b.input(rows, kCols, t),
                       .y = b.result(rows, kCols, t),
                       .cosine = b.input(kMaxPosition, kHeadDim / 2, DType::f32),
                       .sine = b.input(kMaxPosition, kHeadDim / 2, DType::f32),
                       .position = b.numbers(rows, kMaxPosition),
                       .head_dim = kHeadDim,
                       .rotary_dim = kHeadDim});
}

// Eight heads of q for four of k.
NormedHeads normed_heads(KernelBench& b, std::int64_t rows) {
  return {.q_heads = kCols / kHeadDim * 2 / 3,
          .head_dim = kHeadDim,
          .rotary_dim = kHeadDim,
          .cosine = b.input(kMaxPosition, kHeadDim / 2, DType::f32),
          .sine = b.input(kMaxPosition, kHeadDim / 2, DType::f32),
          .position = b.numbers(rows, kMaxPosition)};
}

LaunchTime head_norm_rope(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(HeadNormRope{.heads = normed_heads(b, rows),
                               .x = b.input(rows, kCols, t),
                               .q_weight = b.input(1, kHeadDim, t),
                               .k_weight = b.input(1, kHeadDim, t),
                               .y = b.result(rows, kCols, t),
                               .rstd = b.result(1, rows * (kCols / kHeadDim), DType::f32)});
}

LaunchTime head_norm_rope_backward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(HeadNormRopeBackward{.heads = normed_heads(b, rows),
                                       .dy = b.input(rows, kCols, t),
                                       .x = b.input(rows, kCols, t),
                                       .q_weight = b.input(1, kHeadDim, t),
                                       .k_weight = b.input(1, kHeadDim, t),
                                       .rstd = b.input(1, rows * (kCols / kHeadDim), DType::f32),
                                       .dx = b.result(rows, kCols, t),
                                       .dq_weight = b.result(1, kHeadDim, DType::f32),
                                       .dk_weight = b.result(1, kHeadDim, DType::f32)});
}

// Sums are fp32, or fp64, whatever the model computes in.
LaunchTime attention_merge(KernelBench& b, DType, std::int64_t rows) {
  constexpr std::int64_t kHeads = kCols / kHeadDim;
  return b.launch(AttentionMerge{.num_sequences = 1,
                                 .num_heads = kHeads,
                                 .part_out = b.input(rows, kCols, DType::f32),
                                 .part_lse = b.input(1, rows * kHeads, DType::f32),
                                 .out = b.result(rows, kCols, DType::f32),
                                 .lse = b.result(1, rows * kHeads, DType::f32)});
}

LaunchTime column_sum(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ColumnSum{.x = b.input(rows, kCols, t), .out = b.result(1, kCols, DType::f32)});
}

// Ids jump about the table, as those of text do.
constexpr std::int64_t kIdStep = 4999;

LaunchTime embedding_forward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(EmbeddingForward{.id = b.numbers(rows, kVocab, DType::i32, kIdStep),
                                   .table = b.input(kVocab, kCols, t),
                                   .y = b.result(rows, kCols, t)});
}

LaunchTime embedding_backward(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(EmbeddingBackward{.id = b.numbers(rows, kVocab, DType::i32, kIdStep),
                                    .dy = b.input(rows, kCols, t),
                                    .dtable = b.result(kVocab, kCols, DType::f32)});
}

LaunchTime logit_statistics(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(LogitStatistics{.logits = b.input(rows, kVocab, DType::f32),
                                  .target = b.numbers(rows, kVocab),
                                  .statistics = b.result(rows, 3, DType::f32),
                                  .num_classes = kVocab});
}

// The gradient has the element type of the model; the logits are fp32.
template <bool gradient>
LaunchTime cross_entropy(KernelBench& b, DType, std::int64_t rows) {
  const View logits = b.input(rows, kVocab, DType::f32);
  return b.launch(CrossEntropy{.logits = logits,
                               .target = b.numbers(rows, kVocab),
                               .loss = b.result(1, rows, DType::f32),
                               .dlogits = gradient ? b.result(rows, kVocab, DType::f32) : View{},
                               .num_classes = kVocab});
}

LaunchTime sum(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(Sum{.x = b.input(rows, kCols, t), .out = b.result(1, 1, DType::f64)});
}

LaunchTime squared_norm(KernelBench& b, DType t, std::int64_t rows) {
  const View g = b.input(rows, kCols, t);
  return b.launch(
      SquaredNorm{.gradients = std::span(&g, 1), .table = {}, .out = b.result(1, 1, DType::f64)});
}

LaunchTime clip_by_value(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ClipByValue{.g = b.result(rows, kCols, t), .limit = 1});
}

// Squares of as many parameters as there are numbers.
LaunchTime decide_update(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(DecideUpdate{.squares = b.input(rows, kCols, DType::f64),
                               .loss_sum = {},
                               .decision = b.result(1, UpdateDecision::kScalars, DType::f64)});
}

LaunchTime scale_update(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(ScaleUpdate{
      .x = b.input(rows, kCols, t), .y = b.result(rows, kCols, t), .decision = b.decision()});
}

// Gradients of one run each.
LaunchTime join_squared_norms(KernelBench& b, DType, std::int64_t rows) {
  return b.launch(JoinSquaredNorms{.runs = b.input(1, rows, DType::f64),
                                   .levels = b.numbers(rows, 1),
                                   .first = b.numbers(rows + 1, rows + 1, DType::i32, 1),
                                   .out = b.result(1, rows, DType::f64)});
}

LaunchTime adam_update(KernelBench& b, DType t, std::int64_t rows) {
  const AdamTensors tensors{.to = {.parameter = b.result(rows, kCols, t),
                                   .gradient = b.input(rows, kCols, t),
                                   .compute_copy = {}},
                            .m = b.result(rows, kCols, t),
                            .v = b.result(rows, kCols, t)};
  return b.launch(
      AdamUpdate{.tensors = std::span(&tensors, 1), .table = {}, .decision = b.decision()});
}

LaunchTime rule_update(KernelBench& b, DType t, std::int64_t rows) {
  const RuleTensors tensors{.to = {.parameter = b.result(rows, kCols, t),
                                   .gradient = b.input(rows, kCols, t),
                                   .compute_copy = {}},
                            .states = {b.result(rows, kCols, t)}};
  return b.launch(RuleUpdate{.tensors = std::span(&tensors, 1),
                             .table = {},
                             .decision = b.decision(),
                             .rule = rules::Momentum{}});
}

// The direction has the element type of the model, masters are fp32.
LaunchTime step_update(KernelBench& b, DType t, std::int64_t rows) {
  return b.launch(StepUpdate{.to = {.parameter = b.result(rows, kCols, DType::f32),
                                    .gradient = b.input(rows, kCols, t),
                                    .compute_copy = {}},
                             .decision = b.decision()});
}

constexpr auto kRowCases = std::to_array<RowCase>({
    {"norm_forward", kCols, false, norm_forward<false>},
    {"norm_forward with residual", kCols, false, norm_forward<true>},
    {"norm_backward", kCols, false, norm_backward<false>},
    {"norm_backward with residual", kCols, false, norm_backward<true>},
    {"add", kCols, false, add},
    {"scale_cast", kCols, false, scale_cast},
    {"normalize", kCols, true, normalize},
    {"fill", kCols, false, fill},
    {"fill of fp64", kCols, true, fill_sums},
    {"activation_forward", kCols, false, activation_forward<false>},
    {"activation_forward gated", kCols, false, activation_forward<true>},
    {"activation_backward", kCols, false, activation_backward<false>},
    {"activation_backward gated", kCols, false, activation_backward<true>},
    {"dropout", kCols, false, dropout},
    {"rope", kCols, false, rope},
    {"head_norm_rope", kCols, false, head_norm_rope},
    {"head_norm_rope_backward", kCols, false, head_norm_rope_backward},
    {"attention_merge", kCols, true, attention_merge},
    {"column_sum", kCols, false, column_sum},
    {"embedding_forward", kCols, false, embedding_forward},
    {"embedding_backward", kCols, false, embedding_backward},
    {"logit_statistics", kVocab, true, logit_statistics},
    {"cross_entropy", kVocab, true, cross_entropy<false>},
    {"cross_entropy with gradient", kVocab, true, cross_entropy<true>},
    {"sum", kCols, true, sum},
    {"squared_norm", kCols, true, squared_norm},
    {"join_squared_norms", 1, true, join_squared_norms},
    {"clip_by_value", kCols, true, clip_by_value},
    {"decide_update", kCols, true, decide_update},
    {"scale_update", kCols, false, scale_update},
    {"adam_update", kCols, true, adam_update},
    {"rule_update", kCols, true, rule_update},
    {"step_update", kCols, false, step_update},
});

}  // namespace

std::span<const RowCase> row_cases() {
  static const std::vector<RowCase> kAll = [] {
    std::vector<RowCase> all(kRowCases.begin(), kRowCases.end());
    for (const std::span<const RowCase> more :
         {expert_row_cases(), factored_row_cases(), projected_row_cases(), block_row_cases(),
          quantize_row_cases()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  return kAll;
}

LaunchTime launch_matmul(KernelBench& b, DType t, int form, std::int64_t m, std::int64_t n,
                         std::int64_t k) {
  const bool weight_grad = form == 2;
  return b.launch(Matmul{.a = weight_grad ? b.input(k, m, t) : b.input(m, k, t),
                         .b = form == 0 ? b.input(n, k, t) : b.input(k, n, t),
                         .c = b.result(m, n, weight_grad ? DType::f32 : t),
                         .bias = {},
                         .transpose_a = weight_grad,
                         .transpose_b = form == 0,
                         .accumulate = weight_grad});
}

LaunchTime launch_attention(KernelBench& b, DType t, bool backward, std::int64_t heads,
                            std::int64_t rows, std::int64_t head_dim) {
  // Four heads per sequence: only the product of both decides the time.
  const std::int64_t per_sequence = std::min<std::int64_t>(4, heads);
  const std::int64_t sequences = heads / per_sequence;
  const std::int64_t count = sequences * rows;
  const std::int64_t cols = per_sequence * head_dim;
  const AttentionShape shape{.num_sequences = sequences,
                             .num_heads = per_sequence,
                             .num_kv_heads = per_sequence,
                             .head_dim = head_dim,
                             .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
                             .q_position = b.numbers(count, rows),
                             .q_document_begin = b.numbers(count, 1),
                             .k_position = b.numbers(count, rows)};
  const View q = b.input(count, cols, t), k = b.input(count, cols, t), v = b.input(count, cols, t);
  if (!backward) {
    return b.launch(AttentionForward{.shape = shape,
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .out = b.result(count, cols, t),
                                     .lse = b.result(1, count * per_sequence, DType::f32)});
  }
  return b.launch(AttentionBackward{.shape = shape,
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .out = b.input(count, cols, t),
                                    .lse = b.input(1, count * per_sequence, DType::f32),
                                    .dout = b.input(count, cols, t),
                                    .dq = b.result(count, cols, t),
                                    .dk = b.result(count, cols, t),
                                    .dv = b.result(count, cols, t)});
}

}  // namespace llmtrain::plan
