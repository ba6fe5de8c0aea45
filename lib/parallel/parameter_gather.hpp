#pragma once
/// Sliced parameters on their way from their owners to all.

#include <span>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// Small ones go as one message, as GradientBucket's do.
class ParameterGather {
 public:
  /// Collective over the owners of `parameters`, whose compute copies have memory and stay until
  /// they have arrived.
  ParameterGather(const kernels::KernelCtx& ctx, const Mesh& mesh,
                  std::span<const Parameter* const> parameters);

  /// Awaits the others' slices: compute copies are whole. Once.
  void arrive(const kernels::KernelCtx& ctx);

 private:
  /// A part of a message, and of what it is a part when it has arrived.
  struct Place {
    Tensor travelling, of_whole;
  };
  void gather(Communicator& owners, const Parameter& parameter);
  void gather_together(const kernels::KernelCtx& ctx, Communicator& owners,
                       std::span<const Parameter* const> parameters);

  std::vector<Place> places_;
  std::vector<Tensor> messages_;
  std::vector<Handle> handles_;
};

}  // namespace llmtrain::parallel
