#pragma once
/// Experts of which each rank of Mesh::experts() has some: rows travel to them and back. Legend: E
/// experts in all, E / r on each of r ranks.

#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/ops/experts.hpp"

namespace llmtrain::ops {

bool shares_experts(const OpCtx& ctx);

/// Which of this rank's sorted rows go to whom, and which come from whom. Numbers of rows are data,
/// so every rank tells the others its own, and what comes has room for the most that can come (as
/// SortedRows::capacity allows), or MeshShape::ep_room.
struct ExpertExchange {
  Communicator* group = nullptr;
  std::vector<std::int64_t> sends, receives;  // rows of each member
  std::int64_t sent_rows = 0;                 // all of `sends`, and choices without room
  bool sends_all = true;                      // there are none without room
  /// Of what came: by the experts that are here, then by sender.
  SortedRows sorted;
};
/// `sorted` by all E experts, of `rows` rows with `top_k` choices each. Waits for the members, and
/// on a GPU for the device. DoesNotFitError when more comes than there is room for.
ExpertExchange exchange_of(const OpCtx& ctx, const SortedRows& sorted, std::int64_t rows,
                           std::int64_t top_k);

/// Sorted rows [sent_rows, cols] -> rows of the experts that are here, [room, cols], zeros behind
/// the last; and back, zeros for choices without room. Each is the other's backward.
Var to_experts(const OpCtx& ctx, const Var& x, const ExpertExchange& exchange);
Var from_experts(const OpCtx& ctx, const Var& x, const ExpertExchange& exchange);

}  // namespace llmtrain::ops
