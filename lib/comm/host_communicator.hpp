#pragma once
/// Groups of processes whose collectives are exchanges in host memory with our own sums.

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/collective_log.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/comm/exchange_queue.hpp"

namespace llmtrain {

/// What the groups of a process share, and outlives them.
struct HostExchange {
  explicit HostExchange(Transport& t) : transport(&t), queue(t) {}
  Transport* transport;
  ExchangeQueue queue;
  CollectiveLog log;
  /// Before every collective its members compare what they call: kind, bytes and site. CommError,
  /// naming two that differ.
  bool check = false;
};

/// A group of the ranks `members`, in this order. `id` is the same on all
/// members and differs from that of other groups with two or more of them. Tensors are the CPU's.
///
/// Every member sends its share of the data straight to the others: all_reduce and reduce_scatter
/// give each member a part to add up, all_gather hands parts around. A rank of n sends
/// 2 (n-1)/n B in an all_reduce of B bytes, and (n-1)/n B in an all_gather to or a reduce_scatter
/// of B bytes, the least that is possible. Data travel in pieces that fit the staging, which keeps
/// them in the caches.
std::unique_ptr<Communicator> make_host_communicator(std::string name, std::vector<int> members,
                                                     int index, int id, HostExchange& exchange);

}  // namespace llmtrain
