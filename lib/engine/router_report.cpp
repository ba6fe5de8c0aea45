#include "lib/engine/router_report.hpp"

#include <cstring>

#include "kernels/elementwise.hpp"

namespace llmtrain::engine {

namespace {

/// `count` numbers of type T from the beginning of `bytes`, as doubles.
template <class T>
std::vector<double> numbers(std::span<const std::byte> bytes, std::size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  return {values.begin(), values.end()};
}

}  // namespace

RouterReport::RouterReport(Device& device, const models::Decoder& decoder) : decoder_(&decoder) {
  for (Reads& reads : reads_) {
    reads = {device.make_host_read(decoder.router_choices().view().bytes()),
             device.make_host_read(decoder.router_losses().view().bytes())};
  }
}

void RouterReport::clear(const kernels::KernelCtx& ctx) const {
  kernels::launch(ctx, kernels::Fill{.y = decoder_->router_choices(), .value = 0});
  kernels::launch(ctx, kernels::Fill{.y = decoder_->router_losses(), .value = 0});
}

void RouterReport::sum(const Mesh& mesh) const {
  for (const Tensor& tensor : {decoder_->router_choices(), decoder_->router_losses()}) {
    // Each stage has counted in its own blocks.
    for (Communicator* group : {&mesh.axis(Axis::pp), &mesh.data()}) {
      if (group->size() > 1) group->all_reduce(tensor, ReduceOp::sum, "routers").wait();
    }
  }
}

void RouterReport::start(int slot) {
  Reads& reads = reads_[static_cast<std::size_t>(slot)];
  reads.choices->start(decoder_->router_choices().view().data);
  reads.losses->start(decoder_->router_losses().view().data);
}

RouterOutcome RouterReport::wait(int slot) {
  Reads& reads = reads_[static_cast<std::size_t>(slot)];
  const Tensor& choices = decoder_->router_choices();
  const auto blocks = static_cast<std::size_t>(choices.rows());
  const auto experts = static_cast<std::size_t>(choices.cols());
  if (choices.device().is_meta()) return {};
  const auto bytes = reads.choices->wait();
  const std::vector<double> counts = choices.dtype() == DType::f64
                                         ? numbers<double>(bytes, blocks * experts)
                                         : numbers<float>(bytes, blocks * experts);
  const std::vector<double> losses = numbers<double>(reads.losses->wait(), 2 * blocks);
  RouterOutcome outcome;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto first = counts.begin() + static_cast<std::ptrdiff_t>(b * experts);
    outcome.choices.emplace_back(first, first + static_cast<std::ptrdiff_t>(experts));
    outcome.balance.push_back(losses[2 * b]);
    outcome.z.push_back(losses[2 * b + 1]);
  }
  return outcome;
}

}  // namespace llmtrain::engine
