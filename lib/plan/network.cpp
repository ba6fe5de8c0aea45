#include "lib/plan/network.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/base/require.hpp"

namespace llmtrain::plan {

double CollectiveGroup::mean_sent_bytes_of_call() const {
  const auto n = static_cast<double>(members.size());
  const auto b = static_cast<double>(bytes);
  switch (kind) {
    case Collective::all_reduce:
      return 2 * (n - 1) / n * b;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::broadcast:
      return (n - 1) / n * b;
    case Collective::send:
      return b;
    case Collective::recv:
    case Collective::barrier:
      return 0;
  }
  fail("no collective {}", static_cast<int>(kind));
}

double CollectiveGroup::sent_bytes_of_call() const {
  if (elements == 0) return mean_sent_bytes_of_call();
  const double own = static_cast<double>(bytes) * static_cast<double>(own_elements) /
                     static_cast<double>(elements);
  return kind == Collective::all_gather ? own * static_cast<double>(members.size() - 1)
                                        : static_cast<double>(bytes) - own;
}

namespace {

int num_nodes(const Network& network, const std::vector<int>& members) {
  std::set<int> nodes;
  for (const int rank : members) nodes.insert(rank / network.ranks_per_node);
  return static_cast<int>(nodes.size());
}

}  // namespace

std::string_view link_name(const Network& network, const std::vector<int>& members) {
  return num_nodes(network, members) == 1 ? "node" : "fabric";
}

double seconds_of(const Network& network, const CollectiveGroup& group) {
  const int nodes = num_nodes(network, group.members);
  const auto ranks = static_cast<double>(group.members.size());
  const double rounds = std::ceil(std::log2(std::max(2.0, ranks)));
  // A message has arrived when its receiver has it: both of them take its time.
  const double sent = group.kind == Collective::recv ? static_cast<double>(group.bytes)
                                                     : group.mean_sent_bytes_of_call();
  if (nodes == 1) return rounds * network.node.seconds + sent / network.node.bytes_per_second;
  const double per_node = ranks / nodes;
  const double latency = rounds * network.fabric.seconds;
  if (group.kind == Collective::all_to_all) {
    const double abroad = static_cast<double>(group.bytes) * (ranks - per_node) / ranks;
    return latency + std::max(abroad / network.fabric.bytes_per_second,
                              (sent - abroad) / network.node.bytes_per_second);
  }
  const double rate = per_node > 1 ? std::min(per_node * network.fabric.bytes_per_second,
                                              network.node.bytes_per_second)
                                   : network.fabric.bytes_per_second;
  return latency + sent / rate;
}

}  // namespace llmtrain::plan
