#include "kernels/cuda/rules/attention.hpp"

#include <algorithm>

namespace llmtrain::kernels::cuda {

namespace {

std::int64_t granules(std::int64_t rows) {
  return (rows + kAttentionGranule - 1) / kAttentionGranule;
}

/// Bytes of what is known of a granule: two positions of keys, four of queries.
constexpr std::uint64_t kKeyBounds = 8;
constexpr std::uint64_t kQueryBounds = 16;

/// Of what lies in a workspace that cuDNN uses.
constexpr std::uint64_t kCudnnAlignment = 256;

bool strides_fit(std::initializer_list<View> views) {
  constexpr std::int64_t kElements = 8;  // 16 bytes
  return std::all_of(views.begin(), views.end(),
                     [](const View& view) { return view.row_stride % kElements == 0; });
}

CudnnObstacle obstacle_of_shape(const KernelCtx& ctx, const AttentionShape& shape, const View& q,
                                DType results) {
  if (ctx.attention == AttentionChoice::own) return CudnnObstacle::choice;
  if (ctx.determinism == Determinism::layout) return CudnnObstacle::layout;
  if (!is_half_width(q.dtype)) return CudnnObstacle::dtype;
  if (results != q.dtype) return CudnnObstacle::parts;
  if (shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim) return CudnnObstacle::head_dim;
  if (shape.softcap > 0) return CudnnObstacle::softcap;
  if (shape.alibi.defined()) return CudnnObstacle::alibi;
  if (shape.sink.defined()) return CudnnObstacle::sink;
  if (shape.dropout.p > 0) return CudnnObstacle::dropout;
  if (!(shape.scale > 0)) return CudnnObstacle::scale;
  if (shape.known_rows == KnownRows::nothing) return CudnnObstacle::unknown_rows;
  // Its backward refuses single rows in its documentation; no sequences, no launch.
  if (q.rows() <= shape.num_sequences) return CudnnObstacle::single_row;
  const bool divided = shape.known_rows != KnownRows::one_document;
  if (divided && ctx.attention == AttentionChoice::automatic) return CudnnObstacle::documents;
  return CudnnObstacle::none;
}

}  // namespace

std::string_view to_string(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::plain:
      return "plain";
    case AttentionKernel::tensor_64:
      return "tensor cores, head_dim 64";
    case AttentionKernel::tensor_96:
      return "tensor cores, head_dim 96";
    case AttentionKernel::tensor_128:
      return "tensor cores, head_dim 128";
    case AttentionKernel::tensor_256:
      return "tensor cores, head_dim 256";
    case AttentionKernel::warpgroup_64:
      return "wgmma, head_dim 64";
    case AttentionKernel::warpgroup_128:
      return "wgmma, head_dim 128";
  }
  return {};
}

AttentionKernel attention_rule(const AttentionShape& shape, DType dtype, bool aligned,
                               bool warpgroups) {
  if (!is_half_width(dtype) || !aligned || shape.head_dim % 8 != 0 ||
      shape.head_dim > kMaxHeadDim) {
    return AttentionKernel::plain;
  }
  if (warpgroups && shape.head_dim <= 128) {
    return shape.head_dim <= 64 ? AttentionKernel::warpgroup_64 : AttentionKernel::warpgroup_128;
  }
  if (shape.head_dim <= 64) return AttentionKernel::tensor_64;
  if (shape.head_dim <= 96) return AttentionKernel::tensor_96;
  return shape.head_dim <= 128 ? AttentionKernel::tensor_128 : AttentionKernel::tensor_256;
}

AttentionScratch::AttentionScratch(const AttentionShape& shape, std::int64_t tq, std::int64_t tk,
                                   std::uint64_t wide)
    : query_granules(granules(tq)), key_granules(granules(tk)) {
  const auto sequences = static_cast<std::uint64_t>(shape.num_sequences);
  key_bounds = sequences * static_cast<std::uint64_t>(query_granules) * kQueryBounds;
  forward_bytes = key_bounds + sequences * static_cast<std::uint64_t>(key_granules) * kKeyBounds;
  delta = (forward_bytes + 15) / 16 * 16;
  backward_bytes = delta + sequences * static_cast<std::uint64_t>(shape.num_heads * tq) * wide;
}

std::string_view to_string(CudnnObstacle obstacle) {
  switch (obstacle) {
    case CudnnObstacle::none:
    case CudnnObstacle::choice:
      return {};
    case CudnnObstacle::layout:
      return "run.determinism is layout";
    case CudnnObstacle::dtype:
      return "another type than bf16 and fp16";
    case CudnnObstacle::parts:
      return "sequences in parts (parallelism.sp_algo: ring)";
    case CudnnObstacle::head_dim:
      return "head_dim";
    case CudnnObstacle::softcap:
      return "softcap";
    case CudnnObstacle::alibi:
      return "ALiBi";
    case CudnnObstacle::sink:
      return "sinks";
    case CudnnObstacle::dropout:
      return "dropout";
    case CudnnObstacle::scale:
      return "a scale that is not positive";
    case CudnnObstacle::unknown_rows:
      return "a key/value cache";
    case CudnnObstacle::single_row:
      return "single rows";
    case CudnnObstacle::documents:
      return "documents";
    case CudnnObstacle::strides:
      return "alignment";
  }
  return {};
}

bool is_recipes(CudnnObstacle obstacle) {
  return obstacle >= CudnnObstacle::dtype && obstacle <= CudnnObstacle::scale;
}

CudnnObstacle cudnn_obstacle(const KernelCtx& ctx, const AttentionForward& op) {
  const CudnnObstacle obstacle = obstacle_of_shape(ctx, op.shape, op.q, op.out.dtype);
  if (obstacle != CudnnObstacle::none) return obstacle;
  return strides_fit({op.q, op.k, op.v, op.out}) ? CudnnObstacle::none : CudnnObstacle::strides;
}

CudnnObstacle cudnn_obstacle(const KernelCtx& ctx, const AttentionBackward& op) {
  const CudnnObstacle obstacle = obstacle_of_shape(ctx, op.shape, op.q, op.dq.dtype);
  if (obstacle != CudnnObstacle::none) return obstacle;
  return strides_fit({op.q, op.k, op.v, op.out, op.dout, op.dq, op.dk, op.dv})
             ? CudnnObstacle::none
             : CudnnObstacle::strides;
}

std::uint64_t cudnn_library_bytes(const KernelCtx& ctx, const AttentionForward&) {
  return ctx.library_workspace_bytes;
}

std::uint64_t cudnn_library_bytes(const KernelCtx& ctx, const AttentionBackward& op) {
  const std::uint64_t least = ctx.library_workspace_bytes;
  constexpr std::uint64_t kTile = 64;
  const AttentionShape& shape = op.shape;
  const auto sequences = static_cast<std::uint64_t>(std::max<std::int64_t>(1, shape.num_sequences));
  const auto all_heads = sequences * static_cast<std::uint64_t>(shape.num_heads);
  const std::uint64_t rows = static_cast<std::uint64_t>(op.q.rows()) / sequences;
  const std::uint64_t padded = (rows + kTile - 1) / kTile * kTile;
  std::uint64_t wanted = 0;
  if (ctx.determinism == Determinism::run) wanted += 2 * all_heads * padded * padded;
  if (shape.num_kv_heads < shape.num_heads) {
    wanted += 4 * all_heads * padded * static_cast<std::uint64_t>(shape.head_dim);
  }
  wanted += wanted / 64 + 4096;  // what the library adds here and there
  return std::clamp(wanted, least, kBackwardReservations * least);
}

CudnnScratch CudnnScratch::backward(const AttentionBackward& op, Determinism determinism) {
  const auto round_up = [](std::uint64_t bytes) {
    return (bytes + kCudnnAlignment - 1) / kCudnnAlignment * kCudnnAlignment;
  };
  const auto rows = static_cast<std::uint64_t>(op.q.rows());
  CudnnScratch scratch;
  scratch.dq_sums = round_up(rows * static_cast<std::uint64_t>(op.shape.num_heads) * sizeof(float));
  scratch.library = scratch.dq_sums;
  if (determinism == Determinism::fast) {
    scratch.library += round_up(rows * static_cast<std::uint64_t>(op.q.cols()) * sizeof(float));
  }
  return scratch;
}

}  // namespace llmtrain::kernels::cuda
