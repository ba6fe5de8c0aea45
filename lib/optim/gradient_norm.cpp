#include "lib/optim/gradient_norm.hpp"

#include <algorithm>

#include "kernels/optimizer.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

GradientNorm::GradientNorm(Device& device, const ParameterStore& store) {
  std::vector<const Parameter*> by_name;
  for (const auto& parameter : store.all()) by_name.push_back(parameter.get());
  std::sort(by_name.begin(), by_name.end(),
            [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); });
  for (const Parameter* parameter : by_name) gradients_.push_back(parameter->grad());
  table_ = kernels::make_table<kernels::SquaredNorm>(device, gradients_, "gradient_norm table");
  squares_ =
      device.allocate({std::ssize(gradients_)}, DType::f64, Category::optimizer, "gradient_norm");
}

namespace {

// The one place where terms of other ranks join. Data ranks hold complete gradients; ranks that
// hold parts of a parameter, or other layers, would each contribute their squares here.
void join_over_mesh(const Mesh& mesh) {
  for (const Axis axis : {Axis::tp, Axis::pp}) {
    require(mesh.size(axis) == 1, "the gradient norm does not join the parts over {} = {} ranks",
            to_string(axis), mesh.size(axis));
  }
}

}  // namespace

const Tensor& GradientNorm::squares(const kernels::KernelCtx& ctx, const Mesh& mesh) const {
  launch(ctx, kernels::SquaredNorm{.gradients = gradients_, .table = table_, .out = squares_});
  join_over_mesh(mesh);
  return squares_;
}

}  // namespace llmtrain::optim
