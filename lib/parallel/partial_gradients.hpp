#pragma once
/// Sums of the gradients of which several ranks of Axis::tp, or two of Axis::pp, have each computed
/// a term.

#include <memory>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

class PartialGradients {
 public:
  /// Collective over the world when some parameter has replicas along Axis::tp or several holders
  /// along Axis::pp. Store and mesh outlive this.
  PartialGradients(const ParameterStore& store, const Mesh& mesh,
                   const CommunicatorFactory& factory);
  /// Communicator::use_staging.
  void use_staging(const Tensor& staging) const;
  /// Makes the gradients of the step, of sliced parameters the own slices, whole along both axes,
  /// after their sum over the data ranks. Collective over the axes.
  void sum() const;

 private:
  /// Parameters, and the group over which they are summed.
  struct Terms {
    std::vector<const Parameter*> parameters;
    Communicator* group = nullptr;
    std::unique_ptr<Communicator> own_group = nullptr;
  };
  Terms over_axis_, over_replicas_, over_holders_;
};

}  // namespace llmtrain::parallel
