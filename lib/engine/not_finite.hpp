#pragma once
/// Where a step that was not applied went wrong.

#include <string>
#include <vector>

#include "lib/engine/engine.hpp"

namespace llmtrain::engine {

/// What is not finite on this rank after a step, in words: "the loss", of its own samples, before
/// those of all ranks were added; "the gradient of NAME" and of how many more, sums over all ranks;
/// "the values of NAME". No step may be in flight. Nothing where the host cannot see the device's
/// memory, whose next step has written over it.
std::vector<std::string> what_is_not_finite(Engine& engine);

}  // namespace llmtrain::engine
