#include "lib/engine/host_shelf.hpp"

#include <utility>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/tensor/pinned_memory.hpp"

namespace llmtrain::engine {

namespace {

/// As large an arena as addresses allow, of memory that does not exist.
constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 50;

class Queued final : public ActivationShelf::Copies {
 public:
  Queued(CopyQueue& queue, std::shared_ptr<const CopyQueue::Point> end)
      : queue_(&queue), end_(std::move(end)) {}
  void hold_launches() override { queue_->hold_launches(*end_); }

 private:
  CopyQueue* queue_;
  std::shared_ptr<const CopyQueue::Point> end_;
};

}  // namespace

/// Its items lie together in one piece of memory. What is written there next is copied by the
/// same queue, so nobody has to wait for what was read.
class HostShelf::InMemory final : public ActivationShelf::Block {
 public:
  InMemory(HostShelf& of, std::span<const Item> items) : of_(&of) {
    std::uint64_t bytes = 0;
    for (const Item& item : items) bytes += AddressSpace::round_up(item.bytes);
    pinned_ = of_->host_->allocate({static_cast<std::int64_t>(bytes)}, DType::u8, Category::offload,
                                   "activations of a block");
    auto* place = pinned_.view().as<std::byte>();
    for (const Item& item : items) {
      of_->copies_->to_host(place, item.device, item.bytes);
      of_->down_bytes_ += item.bytes;
      parts_.push_back({place, item.bytes});
      place += AddressSpace::round_up(item.bytes);
    }
  }

  std::shared_ptr<Copies> bring(std::span<const Place> places) override {
    CopyQueue& copies = *of_->copies_;
    copies.follow(*copies.launched());  // which may still use what was there
    for (const Place& place : places) {
      const auto& [from, bytes] = parts_[place.number];
      copies.to_device(place.device, from, bytes);
      of_->up_bytes_ += bytes;
    }
    return std::make_shared<Queued>(copies, copies.queued());
  }

 private:
  HostShelf* of_;
  std::vector<std::pair<std::byte*, std::uint64_t>> parts_;
  Tensor pinned_;
};

HostShelf::HostShelf(Device& device, std::uint64_t pinned_bytes)
    : copies_(device.make_copy_queue()) {
  if (device.is_meta()) {
    host_ = std::make_unique<Device>(make_meta_memory(), kUnlimitedBytes);
  } else if (pinned_bytes > 0) {
    host_ = std::make_unique<Device>(make_pinned_memory(*copies_), pinned_bytes);
    pinned_bytes_ = pinned_bytes;
  }
}

HostShelf::~HostShelf() = default;

ActivationShelf::Put HostShelf::put(std::span<const Item> items, const Block*) {
  require(host_ != nullptr, "activations for the host, of which no plan knows");
  copies_->follow(*copies_->launched());
  auto block = std::make_unique<InMemory>(*this, items);
  return {std::move(block), std::make_shared<Queued>(*copies_, copies_->queued())};
}

DeviceActivationFacts HostShelf::facts() const {
  return {.pinned_bytes = host_ ? host_->arena_extent_bytes() : 0,
          .down_bytes = down_bytes_,
          .up_bytes = up_bytes_};
}

}  // namespace llmtrain::engine
