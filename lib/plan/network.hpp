#pragma once
/// Collectives of a step, and what connects the ranks that call them.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/communicator.hpp"

namespace llmtrain::plan {

/// All collectives of one pass that are alike.
struct CollectiveGroup {
  Collective kind = Collective::barrier;
  std::string group;         // "dp*sp"
  std::vector<int> members;  // world ranks, in group order
  std::uint64_t bytes = 0;   // of one call, as CollectiveRecord has them
  std::int64_t count = 0;
  /// As CollectiveRecord has them.
  std::int64_t own_elements = 0, elements = 0;

  /// That a rank sends in one call, on average over the group.
  double mean_sent_bytes_of_call() const;
  /// That this rank sends in one call. (A sum whose elements the group does not divide: the mean.
  /// Libraries that pass slices on from rank to rank send others.)
  double sent_bytes_of_call() const;
  /// In all of them.
  double sent_bytes() const { return static_cast<double>(count) * sent_bytes_of_call(); }
};

/// A way from one rank to others.
struct Link {
  double seconds = 0;           // before the first byte
  double bytes_per_second = 0;  // that one rank sends while all do
};

/// Machines of as many ranks each, by data sheet.
struct Network {
  int ranks_per_node = 1;
  Link node;    // between the ranks of a machine
  Link fabric;  // between machines
};

/// "node" when all members are ranks of one machine, else "fabric".
std::string_view link_name(const Network& network, const std::vector<int>& members);

/// Seconds of one call. Rings over `g` members of each machine cross between machines through `g`
/// adapters at a time; in an all_to_all each rank's parts for other machines cross through its own.
double seconds_of(const Network& network, const CollectiveGroup& group);

}  // namespace llmtrain::plan
