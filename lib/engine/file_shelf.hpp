#pragma once
/// Saved activations of a device in a file of its host.

#include <exception>
#include <optional>

#include "lib/base/task_thread.hpp"
#include "lib/engine/activation_offload.hpp"
#include "lib/engine/activation_shelf.hpp"
#include "lib/offload/value_file_use.hpp"
#include "lib/offload/value_store.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::engine {

/// They pass through a pool of pinned memory, a piece at a time: it is copied down before the disk
/// has it, and up when the disk has brought it. A thread waits for all that, in the order of calls.
/// Who launches goes on, until it needs the memory of what goes down, or what comes up: so it is
/// not more than a block ahead of the device.
class FileShelf final : public ActivationShelf {
 public:
  /// Of a device that outlives this; on meta without a file, which is in options.directory.
  FileShelf(Device& device, const ActivationOffloadOptions& options);
  ~FileShelf() override;

  Put put(std::span<const Item> items, const Block* before) override;
  DeviceActivationFacts facts() const override;
  std::uint64_t pinned_bytes() const override { return store_ ? facts().pinned_bytes : 0; }
  std::uint64_t held_bytes() const override { return held_bytes_; }
  std::optional<offload::StoreTraffic> traffic() const override;
  std::string how() const override { return store_ ? store_->how() : ""; }

 private:
  class InFile;
  class Moving;
  struct Ids;

  /// What the thread does behind everything launched so far, until copies are done; null on meta.
  /// After an error it is that error.
  template <class Work>
  std::shared_ptr<Copies> move(Work work);
  void store(std::span<const Item> items, Ids& ids, const Ids* before);

  std::uint64_t pool_bytes_;
  std::unique_ptr<CopyQueue> copies_;
  std::optional<offload::ValueStore> store_;
  offload::ValueFileUse use_;
  std::uint64_t down_bytes_ = 0, up_bytes_ = 0, held_bytes_ = 0;
  double waited_seconds_ = 0;
  std::exception_ptr failure_;        // of the thread
  std::optional<TaskThread> thread_;  // uses the above
};

}  // namespace llmtrain::engine
