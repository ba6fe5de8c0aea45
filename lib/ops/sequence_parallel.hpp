#pragma once
/// Sequences whose rows the ranks of Axis::sp have in parts (RowMap::in_parts). Legend: S sequences
/// of T rows, n ranks with T / n of each. Of these h are neighbours that share heads, and n / h
/// such groups share rows (MeshShape::sp_ulysses).

#include <vector>

#include "lib/autograd/op_ctx.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

/// Whether this is a way, perhaps one of two, in which ranks share the micro-batch's sequences.
bool shares_sequences(const OpCtx& ctx, SequenceSharing how);

/// All groups' rows of every sequence, in their order: [S * T*h/n, cols] -> [S * T, cols].
Tensor gather_sequences(const OpCtx& ctx, const Tensor& own, std::string_view site);
/// The sum of all groups' terms for the own rows: [S * T, cols] -> [S * T*h/n, cols].
Tensor reduce_sequences(const OpCtx& ctx, const Tensor& terms, std::string_view site);

/// Some columns of a matrix, and where they are in a rank's share of the heads.
struct SharedColumns {
  std::int64_t whole = 0, share = 0, count = 0;
  /// Several ranks have them: gradients of the columns are sums over these, of which this one is
  /// not the first.
  bool adds = false;
};
/// For each rank what it has of the columns, and how many these are.
struct HeadShares {
  std::vector<std::vector<SharedColumns>> of_rank;
  std::int64_t whole_cols = 0, share_cols = 0;
};
/// Of q, k and v side by side, and of what attention gives. RecipeError for heads that `ranks`
/// cannot share.
HeadShares shares_of_qkv(const HeadLayout& heads, int ranks);
HeadShares shares_of_heads(const HeadLayout& heads, int ranks);
/// Of each rank's call.
HeadLayout share_of(const HeadLayout& heads, int ranks);

/// From own rows with all columns to the group's rows with the own share, [S * T/n, whole_cols] ->
/// [S * T*h/n, share_cols], and back.
Var rows_to_heads(const OpCtx& ctx, const Var& x, const HeadShares& shares);
Var heads_to_rows(const OpCtx& ctx, const Var& x, const HeadShares& shares);

}  // namespace llmtrain::ops
