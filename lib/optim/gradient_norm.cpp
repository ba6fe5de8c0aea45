#include "lib/optim/gradient_norm.hpp"

#include <algorithm>

#include "kernels/optimizer.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

GradientNorm::GradientNorm(Device& device, const ParameterStore& store) {
  for (const auto& parameter : store.all()) by_name_.push_back(parameter.get());
  std::sort(by_name_.begin(), by_name_.end(),
            [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); });
  squares_ = device.allocate({static_cast<std::int64_t>(by_name_.size())}, DType::f64,
                             Category::optimizer, "gradient_norm");
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
  for (std::size_t i = 0; i < by_name_.size(); ++i) {
    launch(ctx, kernels::SquaredNorm{.g = by_name_[i]->grad(),
                                     .out = squares_.columns(static_cast<std::int64_t>(i), 1)});
  }
  join_over_mesh(mesh);
  return squares_;
}

}  // namespace llmtrain::optim
