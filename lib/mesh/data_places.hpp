#pragma once
/// Places of ranks in the groups of Mesh that hold parts of the same, without these groups.

#include <vector>

#include "lib/mesh/mesh.hpp"

namespace llmtrain {

/// Of a data rank, its index in each of these groups of its Mesh.
struct DataPlace {
  int dp = 0, sp = 0;               // coordinates
  int data = 0, same_experts = 0;   // Mesh::data() of all, and of the same experts
  int owner = 0, expert_owner = 0;  // Mesh::owners(), likewise
  int replica = 0;                  // Mesh::replicas()
};

/// Of the ranks of dp x sp with one coordinate of tp and pp, in ascending order of ranks. A pure
/// function of the shape, in a time proportional to their number.
std::vector<DataPlace> data_places(const MeshShape& shape);

}  // namespace llmtrain
