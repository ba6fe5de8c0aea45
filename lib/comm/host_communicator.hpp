#pragma once
/// Groups of processes whose tensors lie in host memory.

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/host_collectives.hpp"

namespace llmtrain {

/// A group of the ranks `members`, in this order. `id` is the same on all
/// members and differs from that of other groups with two or more of them. Tensors are the CPU's.
/// Reductions travel in pieces that fit the staging, which keeps them in the caches.
std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, HostExchange& exchange);

}  // namespace llmtrain
