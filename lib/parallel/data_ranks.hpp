#pragma once
/// What travels between data ranks at the end of a step: gradients to whoever updates by them, and
/// what was updated back to all.

#include <functional>

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

class DataRanks {
 public:
  /// Both outlive this.
  DataRanks(const ParameterStore& store, const Mesh& mesh) : store_(&store), mesh_(&mesh) {}

  /// Makes gradients, of sliced parameters the own slices, sums over all ranks that share the
  /// step's samples. What ShardedUnits has summed up over the owners goes over their replicas
  /// alone. Collective over the data ranks, and so are the others.
  void sum_gradients() const;
  /// The same of a tensor of its own for the gradient of `parameter`, and adds it to that.
  void add_summed(const kernels::KernelCtx& ctx, const Parameter& parameter,
                  const Tensor& grad) const;
  void sum(const Tensor& scalars, std::string_view site) const;
  /// Gives all data ranks what each of them has updated.
  void gather_updates() const;

 private:
  Handle start_owners_sum(const Parameter& parameter, const Tensor& grad) const;
  Handle start_replicas_sum(const Parameter& parameter, const Tensor& own) const;
  void for_sliced(const std::function<Handle(const Parameter&)>& start) const;

  const ParameterStore* store_;
  const Mesh* mesh_;
};

}  // namespace llmtrain::parallel
