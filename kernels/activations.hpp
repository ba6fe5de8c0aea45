#pragma once
/// The activation functions and their recipe names. One row of kernels/activation_table.inc
/// declares everything about one of them, for all devices.

#include <optional>
#include <string_view>
#include <vector>

#include "kernels/elementwise.hpp"

namespace llmtrain::kernels {

enum class Activation : std::uint8_t {
#define ACTIVATION(id, names, ...) id,
#include "kernels/activation_table.inc"
#undef ACTIVATION
};

inline constexpr int kNumActivations =
#define ACTIVATION(id, names, ...) 1 +
#include "kernels/activation_table.inc"
#undef ACTIVATION
    0;

/// The function's first name, e.g. "gelu_pytorch_tanh".
std::string_view to_string(Activation activation);
/// By any of its names, spelled as in Hugging Face's `hidden_act`.
std::optional<Activation> parse_activation(std::string_view name);
/// Every accepted name, in the order of the table.
std::vector<std::string_view> activation_names();

}  // namespace llmtrain::kernels
