#pragma once
/// What ranks of mesh_probe hand to MPI, by collective, against what their plans say.

#include "lib/comm/world.hpp"
#include "lib/plan/plan.hpp"

namespace llmtrain::test {

/// A message belongs to the collective whose span of time (lib/base/trace.hpp) it is sent in.
class SentBytes {
 public:
  /// InternalError unless libmesh_count_sent.so is loaded before the program, where there are
  /// several processes.
  explicit SentBytes(const World& world);

  void start() const;
  /// Collective over `all`, the world. The members of each group together have sent since start(),
  /// by kind and bytes of a call, what its textbook volume is; `to_experts` is what this rank is
  /// expected to send in the calls whose sizes only data know. InternalError naming the first that
  /// differs.
  void check(Communicator& all, const plan::PassPlan& planned, double to_experts) const;

 private:
  bool several_;
};

}  // namespace llmtrain::test
