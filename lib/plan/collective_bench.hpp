#pragma once
/// Measures collectives between the processes of a job.

#include <map>

#include "lib/comm/communicator.hpp"
#include "lib/plan/kernel_model.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::plan {

/// Collective over `group`: every kind in sizes from bytes to 64 MiB (`quick`: 16 MiB), the median
/// of this rank's times on data that no cache holds, as gradients are. Messages go between pairs of
/// neighbours, all pairs at once. The map is empty for a group of one. Takes 256 MiB from `device`,
/// and staging.
std::map<Collective, KernelModel> measure_collectives(Communicator& group, Device& device,
                                                      bool quick);

}  // namespace llmtrain::plan
