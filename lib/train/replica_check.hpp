#pragma once
/// Whether ranks that must have the same have it (resilience.checksum_every): a bit that memory or
/// arithmetic has changed on one of them goes unseen otherwise, and spreads.

#include <cstdint>
#include <vector>

#include "lib/engine/engine.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// Collective; no step may be in flight. DeviceError on all ranks, naming the first tensor that
/// differs and the ranks that have it otherwise than most, or all of them where there is no
/// majority. What nobody else has (a slice of ZeRO's) is compared with nothing.
void check_replicas(engine::Engine& engine, const Peers& peers, std::int64_t step);

/// The same of what ranks have loaded of the checkpoint of a step, where StorageError: each byte
/// was checked by one rank, and may have come to another one otherwise.
void check_loaded_alike(engine::Engine& engine, const Peers& peers, std::int64_t step);

/// What a step came to on a rank, and the time there. Loss (nats), norm and decision are the whole
/// step's: every rank computes them from the same numbers in the same order.
struct StepSummary {
  double elapsed_seconds = 0;
  double loss = 0, grad_norm = 0, applied = 0;
};

/// Collective. DeviceError on all ranks unless all have the same; a rank that would decide by
/// itself to skip a step, or to go back, would leave the others behind.
void check_same_outcome(const std::vector<StepSummary>& all, const Peers& peers, std::int64_t step);

}  // namespace llmtrain::train
