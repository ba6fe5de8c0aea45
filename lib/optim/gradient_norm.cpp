#include "lib/optim/gradient_norm.hpp"

#include <algorithm>

#include "kernels/optimizer.hpp"

namespace llmtrain::optim {

GradientNorm::GradientNorm(Device& device, const ParameterStore& store, const Mesh& mesh)
    : mesh_(&mesh) {
  std::vector<const Parameter*> by_name;
  for (const auto& parameter : store.all()) by_name.push_back(parameter.get());
  std::sort(by_name.begin(), by_name.end(),
            [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); });
  constexpr std::array kSplitting{Axis::tp};  // what pp divides is local to one stage
  const DType dtype = store.local().front()->grad().dtype();
  for (const Parameter* p : by_name) {
    const bool counts = p->is_local() && is_first_replica(p->placement(), mesh, kSplitting);
    gradients_.push_back(counts ? p->grad().view()
                                : View{.data = nullptr, .dtype = dtype, .shape = {0}});
  }
  table_ = kernels::make_table<kernels::SquaredNorm>(device, gradients_, "gradient_norm table");
  squares_ =
      device.allocate({std::ssize(gradients_)}, DType::f64, Category::optimizer, "gradient_norm");
}

const Tensor& GradientNorm::squares(const kernels::KernelCtx& ctx) const {
  launch(ctx, kernels::SquaredNorm{.gradients = gradients_, .table = table_, .out = squares_});
  if (mesh_->model().size() > 1) {
    mesh_->model().all_reduce(squares_, ReduceOp::sum, "gradient norm").wait();
  }
  return squares_;
}

}  // namespace llmtrain::optim
