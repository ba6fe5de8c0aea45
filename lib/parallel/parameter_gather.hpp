#pragma once
/// Parameters on their way to where they are whole: slices from their owners to all, and own ones
/// from where they are kept.

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// Small ones go as one message, as GradientBucket's do. What is elsewhere comes beside the
/// caller's work; messages then wait for it.
class ParameterGather {
 public:
  /// Collective over the owners of `parameters`, whose compute copies have memory and stay until
  /// they have arrived. `elsewhere` has what Parameter::copy_is_elsewhere().
  ParameterGather(const kernels::KernelCtx& ctx, const Mesh& mesh,
                  std::span<const Parameter* const> parameters, const ValuesElsewhere* elsewhere);

  /// Awaits own slices and the others': compute copies are whole. Collective. Once. StorageError
  /// where own ones cannot be read.
  void arrive(const kernels::KernelCtx& ctx);
  /// How long the host has waited for own slices in that.
  std::chrono::duration<double> waited() const { return waited_; }

 private:
  /// A part of a message, and of what it is a part when it has arrived.
  struct Place {
    Tensor travelling, of_whole;
  };
  void bring(const ValuesElsewhere* elsewhere);
  void send(const kernels::KernelCtx& ctx);
  void gather(Communicator& owners, const Parameter& parameter);
  void gather_together(const kernels::KernelCtx& ctx, Communicator& owners,
                       std::span<const Parameter* const> parameters);

  const Mesh* mesh_;
  std::vector<const Parameter*> parameters_;
  std::vector<Tensor> brought_;                      // which this thread gives back
  std::unique_ptr<ValuesElsewhere::Coming> coming_;  // own slices, before messages
  std::chrono::duration<double> waited_{0};
  std::vector<Place> places_;
  std::vector<Tensor> messages_;
  std::vector<Handle> handles_;
};

}  // namespace llmtrain::parallel
