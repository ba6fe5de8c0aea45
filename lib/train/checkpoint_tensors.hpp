#pragma once
/// Between the engine's tensors and the boxes of a checkpoint.

#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/handover.hpp"
#include "lib/checkpoint/loader.hpp"
#include "lib/checkpoint/shards.hpp"
#include "lib/engine/engine.hpp"

namespace llmtrain::train {

/// This rank's boxes of masters and optimizer states, `<parameter>` and `<parameter>#<state>`, read
/// where they lie. Each is given by one of the ranks that hold it, so that all write about as much.
std::vector<checkpoint::TensorBox> boxes_to_save(engine::Engine& engine);

/// Whether a tensor is the head's own table, or one of its optimizer states.
bool is_of_head(std::string_view name);

/// By which name a checkpoint has a tensor of the run: where it has no head of its own, the head's
/// weights and optimizer states are those of the embedding; else its own, whether it is there or
/// not.
std::string saved_name(const checkpoint::Loader& loader, const std::string& name);

/// Values of this rank's parameters and optimizer states, several parts at a time. What the
/// checkpoint has in another floating type (FP32, FP64; bf16 of what had no master) is converted,
/// and a warning says what that rounds. CheckpointError where it has another shape, or codes. What
/// `handover`, if there is one, brings of files that this rank checks meanwhile is not read again.
void load_tensors(checkpoint::Loader& loader, engine::Engine& engine,
                  checkpoint::Handover* handover = nullptr);

/// The same of parameters only, for evaluation and generation.
void load_parameters(checkpoint::Loader& loader, engine::Engine& engine);

}  // namespace llmtrain::train
