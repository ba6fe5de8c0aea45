#pragma once
/// Optimizers that treat the matrices of attention and MLP (also of routers and experts) in a way
/// of their own, and embeddings, the head, norms and biases as some other optimizer does.

#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// ZeRO leaves matrices whole.
class MatricesAndOthers : public Optimizer {
 public:
  MomentDecays corrected_decays() const final { return others_->corrected_decays(); }
  std::vector<StateSpec> states(const Parameter& parameter) const final;
  std::int64_t indivisible(const Parameter& parameter) const final;
  std::int64_t divisible(const Parameter& parameter) const final;
  void bind(Device& device, const Mesh& mesh, std::span<const OptimizedParameter> parameters) final;
  void update(const kernels::KernelCtx& ctx, const View& decision) const final;

 protected:
  /// `others`: of all but matrices; the weight decay is theirs.
  explicit MatricesAndOthers(std::unique_ptr<Optimizer> others);

  virtual std::vector<StateSpec> matrix_states(const Parameter& parameter) const = 0;
  /// Of a parameter that is a matrix, or experts that have one each.
  virtual void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                               const View& decision) const = 0;

  const Mesh& mesh() const { return *mesh_; }
  /// p += lr factor `direction` [box of p], beside its decay: kernels::StepUpdate.
  static void step_along(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                         const View& direction, const View& decision, double factor,
                         kernels::WeightDecay decay);

 private:
  std::unique_ptr<Optimizer> others_;
  const Mesh* mesh_ = nullptr;
  std::vector<OptimizedParameter> matrices_, not_matrices_;
};

}  // namespace llmtrain::optim
