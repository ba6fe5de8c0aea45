#pragma once
/// Groups of processes whose tensors lie on devices and travel through pinned host memory.

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/host_collectives.hpp"
#include "lib/comm/pinned_staging.hpp"

namespace llmtrain {

/// As make_host_communicator, for tensors of the staging's device. A collective sees what was
/// launched before it was called, and what is launched after its handle's `wait` sees its results:
/// copies wait for the launches before them, on the device; the host waits for copies alone. Sums
/// are the CPU's, to the bit.
std::unique_ptr<Communicator> make_staged_communicator(std::string name, std::vector<int> members,
                                                       int index, int id, HostExchange& exchange,
                                                       std::shared_ptr<PinnedStaging> staging);

}  // namespace llmtrain
