#pragma once
/// Saved activations in pinned memory of the host between the pass forth and the walk back.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/autograd/tape.hpp"

namespace llmtrain::engine {

/// What a plan and a log say of it.
struct HostActivationFacts {
  /// Pinned memory of the host that was in use at most.
  std::uint64_t pinned_bytes = 0;
  /// Copied to the host, and to the device, so far.
  std::uint64_t down_bytes = 0, up_bytes = 0;
};

/// What a block has saved goes to the host beside the next block's forward; the walk back through
/// a block brings the values of the one before. Copies have an order of their own, launches and
/// copies wait for each other by events, the host for nobody. What is allocated and released when
/// is a matter of calls alone.
class HostActivations final : public TensorKeeper {
 public:
  /// Of the operations that `names` (offloaded_names()) mean, on a device with copies of its own,
  /// which outlives this; on meta it is planned. `pinned_bytes` of the host are taken at once, as
  /// facts() of a planned step say; on meta there is no limit. DeviceError when the host has them
  /// not.
  HostActivations(Device& device, std::span<const std::string> names, std::uint64_t pinned_bytes);
  ~HostActivations() override;

  bool takes(std::string_view op) const override { return ops_.contains(op); }
  /// By the thread that launches, and not while launches are recorded; so are ways back. Tensors
  /// stay on the device until the next call. DoesNotFitError when the host's memory is full.
  std::vector<std::function<Tensor(const OpCtx&)>> put_away(const OpCtx& ctx,
                                                            std::vector<Leaving> tensors) override;

  HostActivationFacts facts() const;
  /// What is pinned; 0 on meta.
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }
  /// Of the host's memory, at the moment.
  std::uint64_t held_bytes() const { return host_ ? host_->ledger().held_bytes() : 0; }

 private:
  class Group;

  std::set<std::string_view> ops_;
  // In the order in which they need each other: copies end before their memory is given back.
  std::unique_ptr<CopyQueue> copies_;
  std::unique_ptr<Device> host_;  // null without a byte
  /// Whose tensors are still on the device.
  std::weak_ptr<Group> leaving_;
  /// The last one of each tape that lives.
  std::map<const Tape*, std::weak_ptr<Group>> newest_;
  std::uint64_t pinned_bytes_ = 0, down_bytes_ = 0, up_bytes_ = 0;
};

}  // namespace llmtrain::engine
