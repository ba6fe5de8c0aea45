#pragma once
/// What one rank writes of a checkpoint.

#include <cstdint>
#include <set>

#include "lib/mesh/mesh.hpp"
#include "lib/optim/optimizer_set.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::engine {

/// Parameters of which this rank writes what it updates, with the states of those elements. Where
/// ranks hold the same, they take turns, so that each element has one writer and all write about as
/// much.
std::set<const Parameter*> written_here(const ParameterStore& store, const Mesh& mesh);

/// Bytes of these as a checkpoint has them (masters whole) and of their states.
std::uint64_t written_bytes(const std::set<const Parameter*>& written,
                            const optim::OptimizerSet& optimizer);

}  // namespace llmtrain::engine
