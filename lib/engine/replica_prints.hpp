#pragma once
/// What ranks that hold the same must have alike, as hashes.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/engine/engine.hpp"

namespace llmtrain::engine {

/// A tensor that a rank keeps from step to step, or its part of one.
struct ReplicaPrint {
  std::string name;           // of the parameter; of a state <parameter>#<state>
  std::uint64_t place = 0;    // of name, kind and the elements that are here: equal on replicas
  std::uint64_t content = 0;  // of the bytes
  bool copy = false;          // what products read, not sliced; else a master or a state
  bool whole = false;         // all elements of the logical tensor
};

/// Of parameters, masters and optimizer states, in their order; no step may be in flight. Memory of
/// a device is read in parts of 4 MiB.
std::vector<ReplicaPrint> replica_prints(Engine& engine);

}  // namespace llmtrain::engine
