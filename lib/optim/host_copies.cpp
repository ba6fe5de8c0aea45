#include "lib/optim/host_copies.hpp"

#include "lib/base/require.hpp"
#include "lib/tensor/pinned_memory.hpp"

namespace llmtrain::optim {

namespace {

class Ascent final : public ValuesElsewhere::Coming {
 public:
  Ascent(CopyQueue& queue, std::shared_ptr<const CopyQueue::Point> end)
      : queue_(&queue), end_(std::move(end)) {}
  void arrive() override { queue_->hold_launches(*end_); }

 private:
  CopyQueue* queue_;
  std::shared_ptr<const CopyQueue::Point> end_;
};

}  // namespace

HostCopies::HostCopies(Device& device, std::span<const OptimizedParameter> parameters)
    : queue_(device.make_copy_queue()) {
  std::uint64_t capacity = AddressSpace::kAlignment;  // where there are none, too
  for (const OptimizedParameter& p : parameters) {
    if (!p.parameter->copy_is_elsewhere()) continue;
    const auto elements = static_cast<std::uint64_t>(p.parameter->own_slice().count);
    capacity += AddressSpace::round_up(elements * size_of(p.parameter->compute_dtype()));
  }
  memory_ = std::make_unique<Device>(
      device.is_meta() ? make_meta_memory() : make_pinned_memory(*queue_), capacity);
  for (const OptimizedParameter& p : parameters) {
    if (!p.parameter->copy_is_elsewhere()) continue;
    copies_[p.parameter] = memory_->allocate(p.parameter->own_shape(), p.parameter->compute_dtype(),
                                             Category::params, p.parameter->name());
  }
}

HostCopies::~HostCopies() = default;

const Tensor& HostCopies::of(const Parameter& parameter) const {
  const auto at = copies_.find(&parameter);
  require(at != copies_.end(), "the host has no copy of {}", parameter.name());
  return at->second;
}

std::unique_ptr<ValuesElsewhere::Coming> HostCopies::bring(
    const std::vector<ValuesElsewhere::CopyRead>& reads) {
  // Launches so far may work with what was in that memory before.
  queue_->follow(*queue_->launched());
  for (const ValuesElsewhere::CopyRead& read : reads) {
    const View& from = of(*read.parameter).view();
    require(from.bytes() == read.to.size(), "{}: {} bytes for a copy of {}", read.parameter->name(),
            read.to.size(), from.bytes());
    queue_->to_device(read.to.data(), from.data, from.bytes());
    brought_bytes_ += from.bytes();
  }
  return std::make_unique<Ascent>(*queue_, queue_->queued());
}

}  // namespace llmtrain::optim
