#pragma once
/// Groups of processes whose tensors lie on devices that a library connects (NCCL).

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/device_watch.hpp"
#include "lib/comm/host_collectives.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain {

/// Tensors of `device` go by its library, what the host knows by `exchange`: waiting for a handle
/// makes later launches wait, not the host. Collective over the members. All that is given outlives
/// the group. DeviceError when the library does not connect them.
std::unique_ptr<Communicator> make_device_communicator(std::string name, std::vector<int> members,
                                                       int index, int id, HostExchange& exchange,
                                                       const Device& device,
                                                       std::shared_ptr<DeviceWatch> watch);

}  // namespace llmtrain
