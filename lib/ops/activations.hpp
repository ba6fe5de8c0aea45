#pragma once
/// The table of activation functions, for the floors that name one but launch no kernel.

#include "kernels/activations.hpp"

namespace llmtrain::ops {

using kernels::Activation;

}  // namespace llmtrain::ops
