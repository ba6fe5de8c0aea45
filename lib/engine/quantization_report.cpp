#include "lib/engine/quantization_report.hpp"

#include <cstring>

#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain::engine {

QuantizationReport::QuantizationReport(const kernels::KernelCtx& ctx, const QuantizedLayers& layers)
    : layers_(&layers),
      amax_(ctx.device->allocate({kLinearOperands}, DType::f32, Category::activations,
                                 "fp8 amax of a step")),
      saturated_(ctx.device->allocate({kLinearOperands}, DType::f64, Category::activations,
                                      "fp8 saturated in a step")) {
  for (Reads& reads : reads_) {
    reads = {ctx.device->make_host_read(amax_.view().bytes()),
             ctx.device->make_host_read(saturated_.view().bytes())};
  }
}

void QuantizationReport::begin_step(const kernels::KernelCtx& ctx) const {
  layers_->begin_step(ctx);
  kernels::launch(ctx, kernels::Fill{.y = amax_, .value = 0});
  kernels::launch(ctx, kernels::Fill{.y = saturated_, .value = 0});
}

void QuantizationReport::join(const kernels::KernelCtx& ctx, const Mesh& mesh) const {
  layers_->join(mesh);
  if (layers_->all_amax().defined()) {
    const Shape by_layer{layers_->all_amax().numel() / kLinearOperands, kLinearOperands};
    kernels::launch(ctx, kernels::BlockAmax{.x = layers_->all_amax().reshape(by_layer),
                                            .amax = amax_,
                                            .block = {.rows = 0, .cols = 1}});
    kernels::launch(ctx, kernels::ColumnSum{.x = layers_->all_saturated().reshape(by_layer),
                                            .out = saturated_});
  }
  // Each stage has layers of its own.
  Communicator& stages = mesh.axis(Axis::pp);
  if (stages.size() == 1) return;
  stages.all_reduce(amax_, ReduceOp::max, "fp8 amax").wait();
  stages.all_reduce(saturated_, ReduceOp::sum, "fp8 saturated").wait();
}

void QuantizationReport::start(int slot) {
  Reads& reads = reads_[static_cast<std::size_t>(slot)];
  reads.amax->start(amax_.view().data);
  reads.saturated->start(saturated_.view().data);
}

QuantizationOutcome QuantizationReport::wait(int slot) {
  QuantizationOutcome outcome;
  if (amax_.device().is_meta()) return outcome;
  Reads& reads = reads_[static_cast<std::size_t>(slot)];
  std::array<float, kLinearOperands> amax;
  std::memcpy(amax.data(), reads.amax->wait().data(), sizeof amax);
  outcome.amax = {amax[0], amax[1], amax[2]};
  std::memcpy(outcome.saturated.data(), reads.saturated->wait().data(), sizeof outcome.saturated);
  return outcome;
}

}  // namespace llmtrain::engine
