#include "lib/engine/recorded_parts.hpp"

#include "lib/base/error.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::engine {

void RecordedParts::run(Part part, const std::function<void()>& launches,
                        const std::vector<const void*>& inputs) {
  Recorded& recorded = recorded_[static_cast<std::size_t>(part)];
  if (!enabled_ || recorded.runs++ == 0 || recorded.has_collectives) {
    const std::uint64_t before = collectives_();
    launches();
    recorded.has_collectives |= collectives_() != before;
    return;
  }
  if (recorded.work == nullptr) {
    record(recorded, launches);
    recorded.inputs = inputs;
  } else {
    require(recorded.inputs == inputs, "a recorded part of a step finds its inputs elsewhere");
    device_->repeat(recorded.allocations);
  }
  recorded.work->launch();
}

void RecordedParts::record(Recorded& recorded, const std::function<void()>& launches) {
  MemoryBackend& queue = device_->backend();
  queue.begin_recording();
  device_->ledger().note_in(&recorded.allocations);
  try {
    launches();
  } catch (...) {
    device_->ledger().note_in(nullptr);
    try {
      queue.end_recording();  // what was recorded is of no use, and nobody may record for ever
    } catch (const DeviceError&) {
    }
    throw;
  }
  device_->ledger().note_in(nullptr);
  recorded.work = queue.end_recording();
}

}  // namespace llmtrain::engine
