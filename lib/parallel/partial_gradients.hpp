#pragma once
/// Sums of the gradients of which each rank of Axis::tp has computed a term.

#include <memory>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

class PartialGradients {
 public:
  /// Collective over the world when some parameter has replicas along Axis::tp. Store and mesh
  /// outlive this.
  PartialGradients(const ParameterStore& store, const Mesh& mesh,
                   const CommunicatorFactory& factory);
  /// Communicator::use_staging.
  void use_staging(const Tensor& staging) const;
  /// Makes the gradients of the step whole along Axis::tp. Collective over that axis.
  void sum() const;

 private:
  std::vector<const Parameter*> over_axis_, over_replicas_;
  Communicator* axis_;
  std::unique_ptr<Communicator> replicas_;
};

}  // namespace llmtrain::parallel
