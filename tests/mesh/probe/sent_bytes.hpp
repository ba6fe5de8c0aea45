#pragma once
/// What ranks of mesh_probe hand to MPI, by collective, against what their plans say.

#include <map>
#include <string>

#include "lib/comm/world.hpp"
#include "lib/plan/plan.hpp"

namespace llmtrain::test {

/// What is known of calls whose sizes are data's: of them all the plan says `planned_bytes`, for
/// `planned_rows` rows, of which there really are `rows` that leave this rank. Over the members of
/// a group only these sums are right: a plan's rows are as many for each expert, not for each rank.
struct RowsToExperts {
  double planned_bytes = 0, planned_rows = 1, rows = 1;
};

/// Of parallelism.ep_room, with which every rank gets as many: what the plan says.
RowsToExperts even_rows_to_experts(const plan::PassPlan& step);

/// A message belongs to the collective whose span of time (lib/base/trace.hpp) it is sent in.
class SentBytes {
 public:
  /// InternalError unless libmesh_count_sent.so is loaded before the program, where there are
  /// several processes.
  explicit SentBytes(const World& world);

  void start() const;
  /// Collective over `all`, the world. This rank has sent since start() what its plan says, by kind
  /// and bytes of a call, and the members of each group together exactly that. InternalError naming
  /// the first that differs. Returns what this rank has sent, by "kind on group".
  std::map<std::string, double> check(Communicator& all, const plan::PassPlan& planned,
                                      const RowsToExperts& to_experts) const;

 private:
  bool several_;
};

}  // namespace llmtrain::test
