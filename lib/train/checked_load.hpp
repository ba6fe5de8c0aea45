#pragma once
/// Loading a checkpoint while all ranks check every byte of it.

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/checkpoint/store.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/checkpointing.hpp"

namespace llmtrain::train {

struct CheckedLoad {
  std::vector<checkpoint::Problem> problems;  // of the checkpoint, as all ranks have found
  /// Without problems; else what was loaded is to be loaded over.
  std::optional<LoopState> state;
};

/// The checkers share the files; what one of them reads for the check goes to where it belongs
/// meanwhile. Collective. Errors as those of load_checkpoint(), unless the checkpoint has problems,
/// and Stopped.
CheckedLoad load_while_checking(const checkpoint::CheckpointStore& store, std::uint64_t step,
                                engine::Engine& engine, const RunIdentity& identity,
                                Communicator& checkers);

}  // namespace llmtrain::train
