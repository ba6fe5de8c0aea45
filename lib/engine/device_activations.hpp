#pragma once
/// Saved activations that leave a device with copies of its own between the pass forth and the walk
/// back.

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/autograd/tape.hpp"
#include "lib/engine/activation_shelf.hpp"

namespace llmtrain::engine {

/// What a block has saved goes to a shelf beside the next block's forward; the walk back through a
/// block brings the values of the one before. What is allocated and released when is a matter of
/// calls alone, whatever shelf it is, and how fast.
class DeviceActivations final : public TensorKeeper {
 public:
  /// Of the operations that `names` (offloaded_names()) mean.
  DeviceActivations(std::unique_ptr<ActivationShelf> shelf, std::span<const std::string> names);
  ~DeviceActivations() override;

  bool takes(std::string_view op) const override { return ops_.contains(op); }
  /// By the thread that launches, and not while launches are recorded; so are ways back. Tensors
  /// stay on the device until the next call. Errors of the shelf.
  std::vector<std::function<Tensor(const OpCtx&)>> put_away(const OpCtx& ctx,
                                                            std::vector<Leaving> tensors) override;

  const ActivationShelf& shelf() const { return *shelf_; }

 private:
  class Group;

  std::set<std::string_view> ops_;
  std::unique_ptr<ActivationShelf> shelf_;
  /// Whose tensors are still on the device.
  std::weak_ptr<Group> leaving_;
  /// The last one of each tape that lives.
  std::map<const Tape*, std::weak_ptr<Group>> newest_;
};

}  // namespace llmtrain::engine
