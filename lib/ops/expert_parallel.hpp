#pragma once
/// Experts of which each rank of Mesh::experts() has some: rows travel to them and back. Legend: E
/// experts in all, E / r on each of r ranks.

#include <memory>

#include "lib/ops/experts.hpp"

namespace llmtrain::ops {

bool shares_experts(const OpCtx& ctx);

/// Which of this rank's sorted rows go to whom, and which come from whom.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  ExpertExchange(const ExpertExchange&) = delete;
  ExpertExchange& operator=(const ExpertExchange&) = delete;

  /// Of what comes: by the experts that are here, then by sender.
  const SortedRows& sorted() const { return sorted_; }
  /// Sorted rows [n, cols] -> rows of the experts that are here, [room, cols], zeros behind the
  /// last.
  virtual Tensor bring(const OpCtx& ctx, const Tensor& x) const = 0;
  /// The way back, zeros for choices that are no expert's.
  virtual Tensor give_back(const OpCtx& ctx, const Tensor& y) const = 0;

 protected:
  ExpertExchange() = default;
  SortedRows sorted_;
};
using SharedExchange = std::shared_ptr<const ExpertExchange>;

/// What is sent of `rows` rows with `top_k` choices each, `sorted` by all E experts.
struct RowsToSend {
  SortedRows sorted;
  std::int64_t rows = 0, top_k = 0;
  /// kernels::AssignSlots::needed of the layer, or undefined.
  Tensor needed;
};

/// How many of `rows` rows one expert takes at most.
std::int64_t most_taken(const OpCtx& ctx, const SortedRows& sorted, std::int64_t rows);

/// Exactly the rows that there are. Numbers of rows are data, so every rank tells the others its
/// own, and what comes has room for the most that can come. Waits for the members, and on a GPU for
/// the device.
SharedExchange exact_exchange(const OpCtx& ctx, const RowsToSend& send);
/// As many rows to every rank, `room` times its even share but not more than there can be, filled
/// up with zeros: the device alone knows how many there are. Of rows beyond that NaN comes back.
/// room 0: as many as there can be.
SharedExchange bounded_exchange(const OpCtx& ctx, const RowsToSend& send, double room);
/// Of both what the mesh's ep_room asks for. Rows of which an expert sees few (`whole_sequences`
/// false: generated texts) have room for all.
SharedExchange exchange_of(const OpCtx& ctx, const RowsToSend& send, bool whole_sequences);

/// Rows to their experts and back. Each is the other's backward.
Var to_experts(const OpCtx& ctx, const Var& x, const SharedExchange& exchange);
Var from_experts(const OpCtx& ctx, const Var& x, const SharedExchange& exchange);

}  // namespace llmtrain::ops
