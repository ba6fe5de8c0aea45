#pragma once
/// Which ranks form the groups of a layout, and on which machines they are.

#include <optional>
#include <string>
#include <vector>

#include "lib/mesh/mesh.hpp"

namespace llmtrain {

/// All groups of one kind. Each rank is in one of them.
struct RankGroups {
  /// "tp"; "dp x sp"; "ep"; "slices" and "replicas" where MeshShape::dp_replicate divides dp.
  std::string name;
  /// World ranks in the order of the group, as the communicators of Mesh have them; the groups in
  /// the order of their smallest rank.
  std::vector<std::vector<int>> groups;
};

/// Those of more than one rank: of the axes from the one that neighbours share on, and of what is
/// made of dp and sp.
std::vector<RankGroups> rank_groups(const MeshShape& shape);

/// The machine of every rank.
struct RankPlaces {
  std::vector<std::string> machines;  // names, in the order of their first rank
  std::vector<int> machine_of;        // of a rank, an index into `machines`
};

/// From the host names of all ranks.
RankPlaces places_on(const std::vector<std::string>& hosts);
/// "node 0", "node 1", ...: so many neighbours on each. Both at least 1.
RankPlaces assumed_places(int ranks, int ranks_per_node);

/// For people: the layout, the ranks of each machine, and of every kind of group the members, their
/// machines, and whether groups cross between machines. Long lists are abridged. `places` has
/// shape.world_size() ranks.
std::string rank_map_text(const MeshShape& shape, const RankPlaces& places);

/// What to do about ranks of `tp` that are on several machines; nothing if none are.
std::optional<std::string> advice_on_tp(const MeshShape& shape, const RankPlaces& places);

}  // namespace llmtrain
