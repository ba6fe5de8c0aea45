#pragma once
/// Pinned host memory on the way between a device and other processes.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

/// What all groups of a process share whose tensors are a device's; to be gone before the device.
/// Not in the device's ledger: it is the host's memory, twice kHostStagingBytes and that of the
/// messages which are under way at a time.
class PinnedStaging : public std::enable_shared_from_this<PinnedStaging> {
 public:
  explicit PinnedStaging(const Device& device)
      : device_(&device),
        copies_(device.make_copy_queue()),
        pieces_(copies_->pin(kHostStagingBytes)),
        terms_(copies_->pin(kHostStagingBytes)) {}

  const Device& device() const { return *device_; }
  CopyQueue& copies() { return *copies_; }
  /// What is exchanged at a time, of this member.
  std::span<std::byte> pieces() const { return pieces_; }
  /// And of the others.
  std::span<std::byte> terms() const { return terms_; }

  /// Memory of a message; free for another one when nobody holds it. Of the thread that issues
  /// collectives.
  using Room = std::shared_ptr<const std::span<std::byte>>;
  Room room(std::size_t bytes);

 private:
  const Device* device_;
  std::unique_ptr<CopyQueue> copies_;
  std::span<std::byte> pieces_, terms_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::span<std::byte>> free_;  // by size
};

}  // namespace llmtrain
