#pragma once
/// Memory that a run will need is taken from the system while it waits for a disk.

#include <cstdint>
#include <thread>

#include "lib/tensor/device.hpp"

namespace llmtrain::train {

/// The system clears memory when it is first written to, which takes as long as reading a
/// checkpoint into it does. A thread has that done ahead, beside whatever the run does meanwhile.
/// Nothing depends on whether, and how far, it came.
class MemoryAhead {
 public:
  /// The arena's first `bytes`, or all that it has, of a device that outlives this.
  MemoryAhead(const Device& device, std::uint64_t bytes);

 private:
  std::jthread thread_;  // asked to stop, and waited for, at the end
};

}  // namespace llmtrain::train
