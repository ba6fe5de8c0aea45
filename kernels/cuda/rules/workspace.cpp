#include "kernels/cuda/rules/workspace.hpp"

#include <algorithm>

#include "kernels/activations.hpp"
#include "kernels/attention.hpp"
#include "kernels/block_moments.hpp"
#include "kernels/census.hpp"
#include "kernels/code_matmul.hpp"
#include "kernels/cuda/rules/attention.hpp"
#include "kernels/cuda/rules/experts.hpp"
#include "kernels/eight_bit.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/expert_slots.hpp"
#include "kernels/experts.hpp"
#include "kernels/factored.hpp"
#include "kernels/gradient_noise.hpp"
#include "kernels/head_norm_rope.hpp"
#include "kernels/loss.hpp"
#include "kernels/matmul.hpp"
#include "kernels/norm.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/router.hpp"
#include "kernels/scale_rows.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

namespace cuda {

namespace {

template <class K>
std::uint64_t none(const KernelCtx&, const K&) {
  return 0;
}

/// Sums of row blocks and of blocks of elements are what they are on the CPU: the order of
/// summation is part of these kernels' contract.
template <class K>
std::uint64_t as_on_the_cpu(const KernelCtx&, const K& kernel) {
  return kernel.workspace_bytes(1);
}

std::uint64_t of_sum(const KernelCtx&, const Sum& sum) {
  return static_cast<std::uint64_t>((sum.x.numel() + Sum::kBlock - 1) / Sum::kBlock) *
         sizeof(double);
}

/// Sums of what is joined at once.
std::uint64_t of_decide_update(const KernelCtx&, const DecideUpdate& op) {
  return static_cast<std::uint64_t>((op.squares.numel() + kJoinedValues - 1) / kJoinedValues) *
         sizeof(double);
}

/// Sums of chunks of rows, where a matrix has several.
std::uint64_t of_column_squares(const KernelCtx&, const ColumnSquares& op) {
  const std::int64_t chunks = ColumnSquares::chunks(op.shape.rows);
  return chunks > 1 ? static_cast<std::uint64_t>(chunks) * op.out.bytes() : 0;
}

/// A library's product may use what is reserved for libraries; 32 MiB is what NVIDIA recommends for
/// cuBLASLt on Hopper.
std::uint64_t of_matmul(const KernelCtx& ctx, const Matmul& mm) {
  const bool ours = mm.a.dtype == DType::f64 || ctx.determinism == Determinism::layout;
  return ours ? 0 : ctx.library_workspace_bytes;
}

std::uint64_t of_code_matmul(const KernelCtx& ctx, const CodeMatmul&) {
  return ctx.determinism == Determinism::layout ? 0 : ctx.library_workspace_bytes;
}

template <class K>
AttentionScratch attention_scratch(const K& op) {
  require<RecipeError>(op.shape.head_dim <= kMaxHeadDim,
                       "model.head_dim is {}: attention on a GPU takes heads of up to {} elements; "
                       "run.device: cpu takes any",
                       op.shape.head_dim, kMaxHeadDim);
  const std::int64_t sequences = std::max<std::int64_t>(1, op.shape.num_sequences);
  return {op.shape, op.q.rows() / sequences, op.k.rows() / sequences, size_of(op.lse.dtype)};
}

/// What cuDNN is given where it may compute an attention; whether it does is known on the device
/// only, so that plans reserve for either.
template <class K>
std::uint64_t for_cudnn(const KernelCtx& ctx, const K& op, const CudnnScratch& scratch) {
  const CudnnObstacle obstacle = cudnn_obstacle(ctx, op);
  require<RecipeError>(ctx.attention != AttentionChoice::cudnn || !is_recipes(obstacle),
                       "run.attention is cudnn, which computes no attention with {}; "
                       "run.attention: auto takes our own kernels",
                       to_string(obstacle));
  return obstacle == CudnnObstacle::none ? scratch.library + cudnn_library_bytes(ctx, op) : 0;
}

std::uint64_t of_attention_forward(const KernelCtx& ctx, const AttentionForward& op) {
  return std::max(attention_scratch(op).forward_bytes, for_cudnn(ctx, op, CudnnScratch::forward()));
}

std::uint64_t of_attention_backward(const KernelCtx& ctx, const AttentionBackward& op) {
  return std::max(attention_scratch(op).backward_bytes,
                  for_cudnn(ctx, op, CudnnScratch::backward(op, ctx.determinism)));
}

template <class K>
std::uint64_t of_router(const KernelCtx&, const K& op) {
  const std::int64_t experts = op.logits.cols();
  require<RecipeError>(experts <= kMaxRoutedExperts,
                       "the model has blocks of {} experts: routers on a GPU take up to {}; "
                       "run.device: cpu takes any",
                       experts, kMaxRoutedExperts);
  return 0;
}

std::uint64_t of_group_by_expert(const KernelCtx&, const GroupByExpert& op) {
  return group_by_expert_bytes(op.expert.numel(), op.experts());
}

}  // namespace

std::vector<WorkspaceRow> workspace_rows() {
  return {
      workspace_row_of<Add, none<Add>>(),
      workspace_row_of<ScaleCast, none<ScaleCast>>(),
      workspace_row_of<Normalize, none<Normalize>>(),
      workspace_row_of<ScaleUpdate, none<ScaleUpdate>>(),
      workspace_row_of<Fill, none<Fill>>(),
      workspace_row_of<ActivationForward, none<ActivationForward>>(),
      workspace_row_of<ActivationBackward, none<ActivationBackward>>(),
      workspace_row_of<Dropout, none<Dropout>>(),
      workspace_row_of<NormForward, none<NormForward>>(),
      workspace_row_of<NormBackward, as_on_the_cpu<NormBackward>>(),
      workspace_row_of<HeadNormRope, none<HeadNormRope>>(),
      workspace_row_of<HeadNormRopeBackward, as_on_the_cpu<HeadNormRopeBackward>>(),
      workspace_row_of<EmbeddingForward, none<EmbeddingForward>>(),
      workspace_row_of<EmbeddingBackward, none<EmbeddingBackward>>(),
      workspace_row_of<LogitStatistics, none<LogitStatistics>>(),
      workspace_row_of<CrossEntropy, none<CrossEntropy>>(),
      workspace_row_of<Sum, of_sum>(),
      workspace_row_of<RouteTokens, of_router<RouteTokens>>(),
      workspace_row_of<LimitChoices, as_on_the_cpu<LimitChoices>>(),
      workspace_row_of<CountChoices, none<CountChoices>>(),
      workspace_row_of<RouteTokensBackward, of_router<RouteTokensBackward>>(),
      workspace_row_of<BalanceRouter, none<BalanceRouter>>(),
      workspace_row_of<GroupByExpert, of_group_by_expert>(),
      workspace_row_of<GatherRows, none<GatherRows>>(),
      workspace_row_of<CombineRows, none<CombineRows>>(),
      workspace_row_of<AssignSlots, none<AssignSlots>>(),
      workspace_row_of<TakeRows, none<TakeRows>>(),
      workspace_row_of<GroupedMatmul, none<GroupedMatmul>>(),
      workspace_row_of<ScaleRows, none<ScaleRows>>(),
      workspace_row_of<ScaleRowsBackward, none<ScaleRowsBackward>>(),
      workspace_row_of<BlockAmax, none<BlockAmax>>(),
      workspace_row_of<ScaleFromAmax, none<ScaleFromAmax>>(),
      workspace_row_of<RollAmaxHistory, none<RollAmaxHistory>>(),
      workspace_row_of<Quantize, none<Quantize>>(),
      workspace_row_of<Dequantize, none<Dequantize>>(),
      workspace_row_of<Census, none<Census>>(),
      workspace_row_of<SquaredNorm, as_on_the_cpu<SquaredNorm>>(),
      workspace_row_of<ClipByValue, none<ClipByValue>>(),
      workspace_row_of<JoinSquaredNorms, none<JoinSquaredNorms>>(),
      workspace_row_of<DecideUpdate, of_decide_update>(),
      workspace_row_of<AdamUpdate, none<AdamUpdate>>(),
      workspace_row_of<RuleUpdate, none<RuleUpdate>>(),
      workspace_row_of<StepUpdate, none<StepUpdate>>(),
      workspace_row_of<BlockSquares, as_on_the_cpu<BlockSquares>>(),
      workspace_row_of<BlockMoments, none<BlockMoments>>(),
      workspace_row_of<BlockAdamUpdate, none<BlockAdamUpdate>>(),
      workspace_row_of<EightBitUpdate, none<EightBitUpdate>>(),
      workspace_row_of<GradientNoise, none<GradientNoise>>(),
      workspace_row_of<ColumnSquares, of_column_squares>(),
      workspace_row_of<RowTotals, none<RowTotals>>(),
      workspace_row_of<MasterSquares, as_on_the_cpu<MasterSquares>>(),
      workspace_row_of<FactoredScale, none<FactoredScale>>(),
      workspace_row_of<MatrixStepUpdate, none<MatrixStepUpdate>>(),
      workspace_row_of<CameMoment, none<CameMoment>>(),
      workspace_row_of<CoverMaxima, none<CoverMaxima>>(),
      workspace_row_of<CoverScale, none<CoverScale>>(),
      workspace_row_of<ColumnSum, as_on_the_cpu<ColumnSum>>(),
      workspace_row_of<Rope, none<Rope>>(),
      workspace_row_of<Matmul, of_matmul>(),
      workspace_row_of<CodeMatmul, of_code_matmul>(),
      workspace_row_of<AttentionForward, of_attention_forward>(),
      workspace_row_of<AttentionBackward, of_attention_backward>(),
      workspace_row_of<AttentionMerge, none<AttentionMerge>>(),
  };
}

bool fuses_activation(Activation activation, DType dtype) {
  return activation == Activation::gelu_pytorch_tanh && is_half_width(dtype);
}

}  // namespace cuda

const KernelTable& meta_cuda_table() {
  static const KernelTable table("meta", {}, cuda::workspace_rows(), cuda::fuses_activation);
  return table;
}

}  // namespace llmtrain::kernels
