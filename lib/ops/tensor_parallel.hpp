#pragma once
/// Rows between the layers that the ranks of Axis::tp share.

#include "lib/autograd/op_ctx.hpp"
#include "lib/tensor/tensor.hpp"

namespace llmtrain::ops {

/// Whether layers have several ranks.
bool tp_is_split(const OpCtx& ctx);
/// Whether each of them has rows of its own in between.
bool tp_shares_rows(const OpCtx& ctx);
/// All rows of ctx.rows, of which each rank has its own.
Tensor gather_tp_rows(const OpCtx& ctx, const Tensor& own, std::string_view site);
/// The sum of the ranks' `terms` of all rows: in place, or of the own rows where rows are shared.
Tensor sum_over_tp(const OpCtx& ctx, Tensor terms, std::string_view site);

}  // namespace llmtrain::ops
