#pragma once
/// What the probe executable can watch. Each returns 0 when nothing was found, 1 otherwise.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::memory_probe {

/// Every kind of block, none of which may go unseen.
int probe_itself();

/// `steps` steps of an engine with an evaluation between any two: `family` is gpt2 or llama,
/// `overrides` change its recipe, which must plan `at_least_bytes`; `fault` (or "") names something
/// forbidden to do in the steps.
int probe_steps(std::string_view family, const std::vector<std::string>& overrides, int steps,
                std::uint64_t at_least_bytes, std::string_view fault);

/// A whole run by the training loop in the current directory.
int probe_loop(std::string_view fault);

}  // namespace llmtrain::memory_probe
