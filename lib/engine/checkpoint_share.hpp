#pragma once
/// What one rank writes of a checkpoint.

#include <cstdint>
#include <set>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/optim/optimizer_set.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::engine {

/// Whose turn it is to write a parameter, among the ranks that hold the same of it as this one:
/// Mesh::replicas() of a slice, else Mesh::data(Parameter::holders_of_data()).
struct WriteTurn {
  const Parameter* parameter = nullptr;
  int writer = 0;  // index in that group
};

/// Of the parameters that this rank holds, the largest first: each element gets one writer, the one
/// that has least so far, so that none has more than four thirds of the least that is possible.
std::vector<WriteTurn> write_turns(const ParameterStore& store, const Mesh& mesh);

/// Parameters of which this rank writes what it updates, with the states of those elements.
std::set<const Parameter*> written_here(const ParameterStore& store, const Mesh& mesh);

/// Bytes of these as a checkpoint has them (masters whole) and of those of `states` that are
/// theirs.
std::uint64_t written_bytes(const std::set<const Parameter*>& written,
                            std::span<const optim::StateTensor> states);

}  // namespace llmtrain::engine
