#pragma once
/// Saved activations in pinned memory of the host.

#include "lib/engine/activation_shelf.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::engine {

/// Copies have an order of their own, launches and copies wait for each other by events, the host
/// for nobody.
class HostShelf final : public ActivationShelf {
 public:
  /// Of a device that outlives this. `pinned_bytes` of the host are taken at once, as facts() of a
  /// planned step say; on meta there is no limit. DeviceError when the host has them not.
  HostShelf(Device& device, std::uint64_t pinned_bytes);
  ~HostShelf() override;

  Put put(std::span<const Item> items, const Block* before) override;
  DeviceActivationFacts facts() const override;
  std::uint64_t pinned_bytes() const override { return pinned_bytes_; }
  std::uint64_t held_bytes() const override { return host_ ? host_->ledger().held_bytes() : 0; }

 private:
  class InMemory;

  // In the order in which they need each other: copies end before their memory is given back.
  std::unique_ptr<CopyQueue> copies_;
  std::unique_ptr<Device> host_;  // null without a byte
  std::uint64_t pinned_bytes_ = 0, down_bytes_ = 0, up_bytes_ = 0;
};

}  // namespace llmtrain::engine
