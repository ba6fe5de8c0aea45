#include "lib/train/memory_ahead.hpp"

#include <algorithm>
#include <stop_token>
#include <system_error>

namespace llmtrain::train {

namespace {

// Some huge pages: a thread that is asked to stop does so within milliseconds.
constexpr std::uint64_t kBytesAtATime = 16 << 20;

}  // namespace

MemoryAhead::MemoryAhead(const Device& device, std::uint64_t bytes) {
  const std::uint64_t end = std::min(bytes, device.capacity_bytes());
  try {
    thread_ = std::jthread([&device, end](const std::stop_token& stop) {
      for (std::uint64_t at = 0; at < end && !stop.stop_requested(); at += kBytesAtATime) {
        device.populate(at, std::min(kBytesAtATime, end - at));
      }
    });
  } catch (const std::system_error&) {  // no more threads: the memory comes at the first write
  }
}

}  // namespace llmtrain::train
