#include "lib/engine/router_report.hpp"

#include <cstring>
#include <numeric>

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

std::vector<double> counts_of(std::span<const std::byte> bytes, const Tensor& counts) {
  const auto count = static_cast<std::size_t>(counts.numel());
  return counts.dtype() == DType::f64 ? numbers<double>(bytes, count)
                                      : numbers<float>(bytes, count);
}

/// What a step counts.
std::vector<Tensor> counted(const models::Decoder& decoder) {
  std::vector<Tensor> all{decoder.router_choices(), decoder.router_losses()};
  if (decoder.router_kept().defined()) all.push_back(decoder.router_kept());
  return all;
}

}  // namespace

RouterReport::RouterReport(Device& device, const models::Decoder& decoder) : decoder_(&decoder) {
  for (Reads& reads : reads_) {
    reads = {device.make_host_read(decoder.router_choices().view().bytes()),
             device.make_host_read(decoder.router_losses().view().bytes()), nullptr};
    if (!decoder.router_kept().defined()) continue;
    reads.kept = device.make_host_read(decoder.router_kept().view().bytes());
  }
}

void RouterReport::clear(const kernels::KernelCtx& ctx) const {
  for (const Tensor& tensor : counted(*decoder_)) {
    kernels::launch(ctx, kernels::Fill{.y = tensor, .value = 0});
  }
}

void RouterReport::sum(const Mesh& mesh) const {
  for (const Tensor& tensor : counted(*decoder_)) {
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
  if (reads.kept) reads.kept->start(decoder_->router_kept().view().data);
}

RouterOutcome RouterReport::wait(int slot) {
  Reads& reads = reads_[static_cast<std::size_t>(slot)];
  const Tensor& choices = decoder_->router_choices();
  const auto blocks = static_cast<std::size_t>(choices.rows());
  const auto experts = static_cast<std::size_t>(choices.cols());
  if (choices.device().is_meta()) return {};
  const std::vector<double> counts = counts_of(reads.choices->wait(), choices);
  std::vector<double> kept;
  if (reads.kept) kept = counts_of(reads.kept->wait(), decoder_->router_kept());
  const std::vector<double> losses = numbers<double>(reads.losses->wait(), 2 * blocks);
  RouterOutcome outcome;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto first = static_cast<std::ptrdiff_t>(b * experts);
    const auto end = first + static_cast<std::ptrdiff_t>(experts);
    outcome.choices.emplace_back(counts.begin() + first, counts.begin() + end);
    if (!kept.empty()) {
      outcome.kept.push_back(std::accumulate(kept.begin() + first, kept.begin() + end, 0.0));
    }
    outcome.balance.push_back(losses[2 * b]);
    outcome.z.push_back(losses[2 * b + 1]);
  }
  return outcome;
}

}  // namespace llmtrain::engine
