#pragma once
/// Random words of a parameter's elements that do not depend on the layout.

#include <cstdint>
#include <string_view>

#include "lib/param/parameter.hpp"

namespace llmtrain {

/// Words of the elements that this rank updates, Parameter::own_slice(), by (seed, purpose, name);
/// they are counted by the logical index, whatever part of the parameter is here.
StochasticRounding words_of(const Parameter& p, std::uint64_t seed, std::string_view purpose);

}  // namespace llmtrain
