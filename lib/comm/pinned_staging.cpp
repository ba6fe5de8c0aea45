#include "lib/comm/pinned_staging.hpp"

namespace llmtrain {

// Messages of a run have few sizes, which come again in every step.
PinnedStaging::Room PinnedStaging::room(std::size_t bytes) {
  std::span<std::byte> memory;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(bytes); found != free_.end()) {
      memory = free_.extract(found).mapped();
    }
  }
  if (memory.empty() && bytes > 0) memory = copies_->pin(bytes);
  const auto give_back = [self = shared_from_this()](const std::span<std::byte>* room) {
    const std::lock_guard lock(self->mutex_);
    self->free_.emplace(room->size(), *room);
    delete room;
  };
  return {new std::span<std::byte>(memory), give_back};
}

}  // namespace llmtrain
