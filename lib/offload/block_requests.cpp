#include "lib/offload/block_requests.hpp"

#include <cerrno>
#include <utility>

#include "lib/base/activity.hpp"

namespace llmtrain::offload {

void BlockRequests::add(std::uint64_t id, bool is_write, std::uint64_t offset,
                        std::span<std::byte> memory) {
  blocks_[id] = {.is_write = is_write, .offset = offset, .memory = memory};
  pending_.push_back(id);
}

void BlockRequests::submit() {
  while (!pending_.empty() && in_flight_ < kDepth) {
    const std::uint64_t id = pending_.front();
    pending_.pop_front();
    const Block& block = blocks_.at(id);
    queue_->submit({.is_write = block.is_write,
                    .offset = block.offset + block.done,
                    .memory = block.memory.subspan(block.done),
                    .id = id});
    ++in_flight_;  // of one that was refused nobody hears again
  }
}

std::optional<std::uint64_t> BlockRequests::complete(const DiskCompletion& completion) {
  if (completion.id == kWake) {
    wake_is_due_ = false;
    return std::nullopt;
  }
  --in_flight_;
  activity::tick();
  Block& block = blocks_.at(completion.id);
  const std::int64_t result = completion.result;
  // By the file system, or by a driver whose pinned memory a disk cannot reach.
  const bool bypass_fails = result == -EINVAL || result == -EFAULT;
  const bool is_refused = bypass_fails && !std::exchange(block.was_refused, true);
  if (is_refused) file_->stop_bypassing();
  if (is_refused || result == -EINTR || result == -EAGAIN) {
    pending_.push_back(completion.id);
    return std::nullopt;
  }
  if (result <= 0) file_->fail_at(block.is_write, block.offset + block.done, result);
  block.done += static_cast<std::uint64_t>(result);
  if (block.done >= block.memory.size()) {
    blocks_.erase(completion.id);
    return completion.id;
  }
  // What goes past the cache goes on at a whole block of the disk.
  block.done -= block.done % ScratchFile::kAlignment;
  pending_.push_back(completion.id);
  return std::nullopt;
}

void BlockRequests::wake() {
  if (!std::exchange(wake_is_due_, true)) queue_->wake(kWake);
}

}  // namespace llmtrain::offload
