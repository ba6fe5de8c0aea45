#pragma once
/// Compute copies of a device's parameters in a file of its host, from where they are copied up for
/// each unit of the model before its work.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lib/optim/offloaded_states.hpp"

namespace llmtrain::optim {

/// Copies between a device and its host in an order of their own, with a piece of pinned memory.
struct CopyLane {
  CopyQueue* queue = nullptr;
  std::span<std::byte> memory;
};

/// Pieces of them are read into the memory of one lane after the other, and go up from there while
/// the next ones are read.
class FileCopies {
 public:
  /// The lanes' memory is this object's but for updates; it and `file` outlive this. Without memory
  /// behind it (`is_planned`) reads and copies are counted.
  FileCopies(const OffloadedStates& file, std::vector<CopyLane> lanes, bool is_planned);

  /// ValuesElsewhere::bring_copies(); what comes does not outlive this.
  std::unique_ptr<ValuesElsewhere::Coming> bring(std::vector<ValuesElsewhere::CopyRead> reads);
  /// What bring() has copied; on meta, would have.
  std::uint64_t brought_bytes() const { return brought_bytes_; }

 private:
  using Point = std::shared_ptr<const CopyQueue::Point>;
  class Ascent;

  /// Ends of what each lane copies, all of it behind `launched`.
  std::vector<std::pair<CopyQueue*, Point>> send_up(
      const std::vector<ValuesElsewhere::CopyRead>& reads, const Point& launched);

  const OffloadedStates* file_;
  std::vector<CopyLane> lanes_;
  bool is_planned_;
  std::mutex mutex_;  // one unit is on its way through the lanes at a time
  std::size_t next_lane_ = 0;
  std::atomic<std::uint64_t> brought_bytes_ = 0;
};

}  // namespace llmtrain::optim
