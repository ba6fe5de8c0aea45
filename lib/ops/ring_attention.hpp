#pragma once
/// Attention over sequences whose keys and values go from rank to rank of Axis::sp (ring attention,
/// arXiv 2310.01889). Legend: n ranks, each with the queries, keys and values of its own rows, or
/// n groups whose ranks share heads (MeshShape::sp_ulysses), each with those of its group's rows.
///
/// In step s of n, a rank attends to the keys of the rank s places before it, while these are
/// already on their way to the next one. What the kernels see of other ranks' keys are their
/// positions (RowMap::all_position): masks, documents and dropout are those of one rank.

#include "kernels/attention.hpp"
#include "lib/autograd/op_ctx.hpp"

namespace llmtrain::ops {

/// `own` attends to its own keys and values, as if the rank were alone; `own.out` and `own.lse`
/// become those of all ranks' keys, merged in FP32 (FP64 for fp64). A sink counts once, with the
/// own keys. Sends keys and values of n - 1 ranks.
void ring_attention(const OpCtx& ctx, const kernels::AttentionForward& own);

/// The same, with the out and lse of all ranks' keys: `own.dk` and `own.dv` become the sums of all
/// ranks' terms for the own keys. Sums are FP32 (FP64 for fp64), also on their way: those of a
/// rank's keys begin at the rank after it, and come home with the terms of all others. Sends keys
/// and values of n - 1 ranks, and sums of n - 1.
void ring_attention_backward(const OpCtx& ctx, const kernels::AttentionBackward& own);

}  // namespace llmtrain::ops
