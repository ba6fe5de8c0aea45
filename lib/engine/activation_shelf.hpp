#pragma once
/// Where saved activations of a device with copies of its own are between the pass forth and the
/// walk back. What is counted and held follows from calls alone, on meta as well.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lib/offload/disk_worker.hpp"

namespace llmtrain::engine {

/// What a plan and a log say of it.
struct DeviceActivationFacts {
  /// Pinned memory of the host that was in use at most.
  std::uint64_t pinned_bytes = 0;
  /// Copied from the device, and to it, so far.
  std::uint64_t down_bytes = 0, up_bytes = 0;
  /// Most that a file can have had; 0 without one.
  std::uint64_t file_bytes = 0;
};

/// All by the thread that launches, and not while launches are recorded.
class ActivationShelf {
 public:
  /// Copies that are under way, or will be.
  class Copies {
   public:
    virtual ~Copies() = default;
    /// Launches from now on begin when they are done. Where there is a file the host waits for
    /// them, and its StorageError is thrown.
    virtual void hold_launches() = 0;
  };
  struct Item {
    std::byte* device = nullptr;
    std::uint64_t bytes = 0;
    std::string name;
  };
  /// Place on the device for the `number`-th of a block's items.
  struct Place {
    std::size_t number = 0;
    std::byte* device = nullptr;
  };
  /// What a block has left there; what was not brought is given up with it.
  class Block {
   public:
    virtual ~Block() = default;
    /// Copies some of its items, each once, to the device, behind everything launched so far.
    virtual std::shared_ptr<Copies> bring(std::span<const Place> places) = 0;
  };
  struct Put {
    std::unique_ptr<Block> block;
    std::shared_ptr<Copies> copies;
  };

  virtual ~ActivationShelf() = default;
  /// Copies what a block has saved, behind everything launched so far. `before` is what the walk
  /// back comes to next, null for nothing. DoesNotFitError when the host's memory is full.
  virtual Put put(std::span<const Item> items, const Block* before) = 0;

  virtual DeviceActivationFacts facts() const = 0;
  /// What is pinned for it; 0 on meta.
  virtual std::uint64_t pinned_bytes() const = 0;
  /// What is there at the moment.
  virtual std::uint64_t held_bytes() const = 0;
  /// Where there is a file: what went through the disk, with the time for which hold_launches()
  /// waited, and how ("by io_uring, past the page cache").
  virtual std::optional<offload::StoreTraffic> traffic() const { return std::nullopt; }
  virtual std::string how() const { return ""; }
};

}  // namespace llmtrain::engine
