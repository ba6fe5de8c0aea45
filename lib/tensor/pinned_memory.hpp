#pragma once
/// Host memory that a device's copies read and write beside its launches, as memory for tensors.

#include <memory>

#include "lib/tensor/device.hpp"

namespace llmtrain {

/// Pinned by `queue`, which outlives it and has it as long as it lives. Its tensors are the host's.
std::unique_ptr<MemoryBackend> make_pinned_memory(CopyQueue& queue);

}  // namespace llmtrain
